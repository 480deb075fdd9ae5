//! Short calls among ranks that share memory: every message is eager, and sends run before receives that they do not depend on.

use super::{Incoming, Instruction, Outgoing, Part, Place};
use crate::plan::Plan;
use crate::schedule::{Chunks, Receive, Send, Source, Step};
use crate::world::Rank;

/// Returns the halves of a plan's steps, with each send as early as its data allows ([`Schedule::earliest_sends`](crate::Schedule::earliest_sends)).
/// A step of the rank with itself stays whole.
pub(super) fn lower(plan: &Plan, rank: Rank) -> Vec<(Place, Instruction)> {
    let places = plan.phases().iter().enumerate().flat_map(|(number, phase)| {
        (0..phase.schedule.steps().len()).map(move |step| Place { name: phase.name, phase: number, step })
    });
    let flattened = plan.flattened();
    let steps: Vec<_> = flattened.steps().iter().zip(places).collect();
    let mut sends: Vec<_> = flattened.earliest_sends().into_iter().zip(&steps).collect();
    sends.sort_by_key(|(earliest, _)| *earliest);
    let mut sends = sends.into_iter().peekable();
    let mut written = vec![false; plan.chunk_count()];
    let mut instructions = Vec::with_capacity(2 * steps.len());
    for (number, &(step, place)) in steps.iter().enumerate() {
        while let Some((_, &(step, place))) = sends.next_if(|(earliest, _)| *earliest <= number) {
            let to_others = step.send.filter(|send| send.to != rank);
            instructions.extend(to_others.map(|send| {
                // Until a chunk is written, its current contents are the original ones, which need no copy.
                let is_written = written[send.chunks.range()].contains(&true);
                let source = if is_written { send.source } else { Source::Current };
                (place, Instruction::Send(Outgoing { to: send.to, part: whole(send.chunks), source }))
            }));
        }
        instructions.extend(rest(step, rank).map(|instruction| (place, instruction)));
        if let Some(receive) = step.receive {
            written[receive.chunks.range()].fill(true);
        }
    }
    instructions
}

/// Returns what remains of a step after its send to another rank.
fn rest(step: &Step, rank: Rank) -> Option<Instruction> {
    let Receive { from, chunks, combine } = step.receive?;
    let to_self = step.send.filter(|send| send.to == rank);
    let send = to_self.map(|Send { to, chunks, source }| Outgoing { to, part: whole(chunks), source });
    Some(Instruction::Exchange(send, Some(Incoming { from, part: whole(chunks), combine })))
}

fn whole(chunks: Chunks) -> Part {
    Part { chunks, block: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Schedule;
    use crate::world::Group;

    #[test]
    fn original_contents_are_sent_even_after_their_chunk_is_written() {
        let [one, other] = [0, 1].map(Chunks::one);
        let steps = [
            Step::new().reduce(1, one),
            Step::new().send(1, one),
            // Sends to a rank stay in order, so these follow the addition.
            Step::new().send_original(1, one),
            Step::new().send_original(1, other),
        ];
        let plan = Plan::single("test", Group::new(vec![0, 1]), Schedule::new(2, steps));
        let instructions = lower(&plan, 0);
        let sources = instructions.iter().filter_map(|(_, instruction)| match instruction {
            Instruction::Send(send) => Some(send.source),
            _ => None,
        });
        assert!(sources.eq([Source::Current, Source::Original, Source::Current]), "{instructions:?}");
    }
}
