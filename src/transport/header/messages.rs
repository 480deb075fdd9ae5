//! Sequence numbers of point-to-point messages.

use unisono_collectives::Rank;

use super::Header;
use crate::codes::Codes;
use crate::record::{Doing, FIRST_OF_MESSAGES, Record, State};
use crate::status::StatusBoard;
use crate::transport::Failure;

/// Counters of the messages between this rank and each other one. Each pair and direction has its own numbers, since other ranks
/// do not know of the messages.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    /// Messages sent to and received from each rank.
    sent: Vec<u64>,
    received: Vec<u64>,
    /// The sender of the last message received.
    last_from: Rank,
}

impl Messages {
    /// The next message to a rank.
    pub(crate) fn to(&mut self, to: Rank, count: usize, codes: Codes, label: u64) -> Header {
        next(&mut self.sent, to, count, codes, label)
    }

    /// The next message from a rank.
    pub(crate) fn from(&mut self, from: Rank, count: usize, codes: Codes, label: u64) -> Header {
        self.last_from = from;
        next(&mut self.received, from, count, codes, label)
    }

    /// The header of a receive from any rank, which has no number until a message is there.
    pub(crate) fn any(codes: Codes) -> Header {
        next(&mut Vec::new(), 0, 0, codes, 0)
    }

    /// The number of messages received, and the sender of the last one.
    pub(crate) fn received(&self) -> (u64, Rank) {
        (self.received.iter().sum(), self.last_from)
    }
}

/// The next message to or from a rank, given the counters of that direction.
fn next(numbers: &mut Vec<u64>, other: Rank, count: usize, codes: Codes, label: u64) -> Header {
    if numbers.len() <= other {
        numbers.resize(other + 1, 0);
    }
    let sequence = FIRST_OF_MESSAGES + numbers[other];
    numbers[other] += 1;
    Header { sequence, count: count as u64, size_bytes: 0, label: label as u32, history: 0, codes }
}

impl Header {
    /// The failure if rank `other`, which this one waits for, will not send: it has left, or, in a long wait, as
    /// [`Header::apart`] finds. Messages that it sent before still count.
    pub(in crate::transport) fn hopeless(
        &self,
        other: Rank,
        status: &StatusBoard,
        is_long: bool,
    ) -> Option<Failure> {
        if status.has_left(other) {
            return Some(Failure::Left { other });
        }
        if is_long { self.apart(other, status) } else { None }
    }

    /// The failure if rank `other`, which this one waits for in a message, waits for this one in a collective that this one has
    /// not started: a deadlock, in which the collective may send nothing that shows it.
    pub(in crate::transport) fn apart(&self, other: Rank, status: &StatusBoard) -> Option<Failure> {
        let position = status.position_of(other).filter(|_| self.is_message())?;
        let Doing { state, last, .. } = status.doing(position);
        let waits = |call: &Record| call.waits_for == Some(status.rank()) && !call.is_of_setup();
        let theirs = last.filter(|call| state == State::Inside && waits(call))?;
        let begun = status.doing(status.position()).last.filter(|call| !call.is_of_setup());
        let has_begun = begun.is_some_and(|last| last.sequence >= theirs.sequence);
        let apart = || Failure::Mismatch { ours: self.describe(status), other, theirs: theirs.to_string() };
        (!has_begun).then(apart)
    }
}

#[cfg(test)]
mod tests {
    use unisono_collectives::Algorithm;

    use super::*;
    use crate::call::Call;
    use crate::dtype::DType;
    use crate::method::Method;
    use crate::transport::Calls;

    const CODES: fn() -> Codes = || Codes::of_message(DType::F32);

    #[test]
    fn messages_are_numbered_for_each_two_ranks() {
        let (status, mut messages) = (StatusBoard::of_one(), Messages::default());
        let said = |header: &Header| header.describe(&status);
        assert_eq!(said(&messages.to(2, 10, CODES(), 0)), "message #0 of 10 f32");
        assert_eq!(said(&messages.to(2, 10, CODES(), 0)), "message #1 of 10 f32");
        assert_eq!(said(&messages.to(1, 10, CODES(), 0)), "message #0 of 10 f32");
        let label = status.know("weights");
        assert_eq!(said(&messages.from(2, 7, CODES(), label)), "message #0 \"weights\" of 7 f32");
        assert_eq!(messages.received(), (1, 2));
    }

    #[test]
    fn what_is_overheard_of_another_pair_is_no_mismatch() {
        let (status, mut messages) = (StatusBoard::of_one(), Messages::default());
        let (ours, theirs) = (messages.from(1, 10, CODES(), 0), messages.to(2, 99, CODES(), 0));
        assert!(ours.check_overheard(&theirs, 2, &status).is_ok());
        assert!(ours.check_called(1, &status).is_ok());
        assert!(ours.check(&theirs, 1, &status).is_err(), "but where it is awaited");
    }

    #[test]
    fn a_rank_that_waits_in_a_collective_sends_no_message() {
        let statuses = StatusBoard::of_threads(3).unwrap();
        let codes = Codes::new(&Call::barrier(), Method::Algorithm(Algorithm::RecursiveDoubling));
        let barrier = Calls::default().next(1, 0, codes, 0);
        let message = Messages::default().from(1, 10, CODES(), 0);
        assert!(message.apart(1, &statuses[0]).is_none(), "it has called nothing");
        let inside = barrier.note(&statuses[1], 0);
        assert!(message.apart(1, &statuses[0]).is_none(), "it does not wait");
        statuses[1].waits_for(2, std::time::Duration::ZERO);
        assert!(message.apart(1, &statuses[0]).is_none(), "it waits for another");
        statuses[1].waits_for(0, std::time::Duration::ZERO);
        let Some(Failure::Mismatch { ours, other: 1, theirs }) = message.apart(1, &statuses[0]) else {
            panic!("a mismatch");
        };
        assert_eq!((ours.as_str(), theirs.as_str()), ("message #0 of 10 f32", "barrier #0"));
        assert!(barrier.apart(1, &statuses[0]).is_none(), "collectives are compared otherwise");
        // This rank has done its part, and the other has not seen it yet.
        barrier.note(&statuses[0], 0).end(true);
        assert!(message.apart(1, &statuses[0]).is_none());
        inside.end(true);
    }
}
