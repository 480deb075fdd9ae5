//! Short calls among ranks that share memory: every message is eager, and sends run before receives that they do not depend on.

use super::{Instruction, Place};
use crate::plan::Plan;
use crate::program::{self, Incoming, Outgoing};
use crate::schedule::Source;
use crate::world::Rank;

/// Returns the halves of a plan's steps, with each send as early as its data allows ([`Schedule::earliest_sends`](crate::Schedule::earliest_sends)).
/// A step of the rank with itself stays whole.
pub(super) fn lower(plan: &Plan, rank: Rank) -> Vec<(Place, Instruction)> {
    let steps: Vec<_> = program::steps(plan).collect();
    let mut sends: Vec<_> = plan.flattened().earliest_sends().into_iter().zip(&steps).collect();
    sends.sort_by_key(|(earliest, _)| *earliest);
    let mut sends = sends.into_iter().peekable();
    let mut written = vec![false; plan.chunk_count()];
    let mut instructions = Vec::with_capacity(2 * steps.len());
    for (number, &(place, send, receive)) in steps.iter().enumerate() {
        while let Some((_, &(place, send, _))) = sends.next_if(|(earliest, _)| *earliest <= number) {
            instructions.extend(send.filter(|send| send.to != rank).map(|send| {
                // Until a chunk is written, its current contents are the original ones, which need no copy.
                let is_written = written[send.part.chunks.range()].contains(&true);
                let source = if is_written { send.source } else { Source::Current };
                (place, Instruction::Send(Outgoing { source, ..send }))
            }));
        }
        if let Some(Incoming { part, .. }) = receive {
            let to_self = send.filter(|send| send.to == rank);
            instructions.push((place, Instruction::Exchange(to_self, receive)));
            written[part.chunks.range()].fill(true);
        }
    }
    instructions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Chunks, Schedule, Step};
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
