//! Short calls among ranks that share memory: every message is eager, and what a rank has, it sends before it waits.

use crate::plan::Plan;
use crate::schedule::{Chunks, Combine, Receive, Source, Step};
use crate::world::Rank;

/// Where a step is in a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The name of its phase.
    pub name: &'static str,
    /// The number of its phase.
    pub phase: usize,
    /// Its own number in the phase.
    pub step: usize,
}

/// A half of a step, or a step in which a rank meets itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// What the buffer holds now is copied to where its receiver finds it.
    Send {
        /// The receiver.
        to: Rank,
        /// What is sent.
        chunks: Chunks,
    },
    /// A message is waited for.
    Receive {
        /// The sender.
        from: Rank,
        /// Where it goes.
        chunks: Chunks,
        /// What happens to what was there.
        combine: Combine,
    },
    /// What the buffer held before the first step takes its place in the order of additions.
    Original {
        /// What it held there.
        from: Chunks,
        /// Where that goes.
        to: Chunks,
        /// What happens to what was there.
        combine: Combine,
    },
}

/// A half, and the step that it is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EagerStep {
    /// The step.
    pub place: Place,
    /// What this rank does.
    pub half: Half,
}

/// All halves of a plan's steps, each send as early as what it reads is there
/// ([`Schedule::earliest_sends`](crate::Schedule::earliest_sends)); without those in which this rank keeps what it has. `None` if it moves
/// something else itself.
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

/// What is left of a step when its send is on its way, if anything is; `None` if that is no half.
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
