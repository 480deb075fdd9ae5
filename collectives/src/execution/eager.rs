//! Short calls among ranks that share memory: every message is eager, and sends run before receives that they do not depend on.

use crate::plan::Plan;
use crate::schedule::{Chunks, Combine, Receive, Source, Step};
use crate::world::Rank;

/// The position of a step in a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The name of its phase.
    pub name: &'static str,
    /// The number of its phase.
    pub phase: usize,
    /// Its number in the phase.
    pub step: usize,
}

/// A half of a step, or a step of a rank with itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// An eager send of the current contents of the buffer.
    Send {
        /// The receiver.
        to: Rank,
        /// The chunks to send.
        chunks: Chunks,
    },
    /// A blocking receive.
    Receive {
        /// The sender.
        from: Rank,
        /// The chunks to receive.
        chunks: Chunks,
        /// How they are combined with the buffer.
        combine: Combine,
    },
    /// Combines the initial contents of the buffer at their place in the order of additions.
    Original {
        /// The chunks of the initial contents.
        from: Chunks,
        /// The chunks that they are combined into.
        to: Chunks,
        /// How they are combined.
        combine: Combine,
    },
}

/// A half, and its step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EagerStep {
    /// The step.
    pub place: Place,
    /// What this rank does.
    pub half: Half,
}

/// The halves of a plan's steps, with each send as early as its data allows
/// ([`Schedule::earliest_sends`](crate::Schedule::earliest_sends)), and without copies of a range to itself. `None` if the plan
/// has other local copies.
pub(super) fn halves(plan: &Plan, rank: Rank) -> Option<Vec<EagerStep>> {
    let places = plan.phases().iter().enumerate().flat_map(|(number, phase)| {
        (0..phase.schedule.steps().len()).map(move |step| Place { name: phase.name, phase: number, step })
    });
    let flattened = plan.flattened();
    let steps: Vec<_> = flattened.steps().iter().zip(places).collect();
    let mut sends: Vec<_> = flattened.earliest_sends().into_iter().zip(&steps).collect();
    sends.sort_by_key(|(earliest, _)| *earliest);
    let mut sends = sends.into_iter().peekable();
    let mut halves = Vec::new();
    for (number, &(step, place)) in steps.iter().enumerate() {
        while let Some((_, &(step, place))) = sends.next_if(|(earliest, _)| *earliest <= number) {
            let to_others = step.send.filter(|send| send.to != rank);
            let half = to_others.map(|send| Half::Send { to: send.to, chunks: send.chunks });
            halves.extend(half.map(|half| EagerStep { place, half }));
        }
        halves.extend(awaited(step, rank)?.map(|half| EagerStep { place, half }));
    }
    Some(halves)
}

/// The rest of a step once its send is posted, if any; `None` if it is not a half.
fn awaited(step: &Step, rank: Rank) -> Option<Option<Half>> {
    match (step.send, step.receive) {
        (_, None) => Some(None),
        (_, Some(Receive { from, chunks, combine })) if from != rank => {
            Some(Some(Half::Receive { from, chunks, combine }))
        }
        (Some(send), Some(receive)) if send.source == Source::Original => {
            Some(Some(Half::Original { from: send.chunks, to: receive.chunks, combine: receive.combine }))
        }
        (Some(send), Some(receive))
            if send.chunks == receive.chunks && receive.combine == Combine::Replace =>
        {
            Some(None)
        }
        _ => None,
    }
}
