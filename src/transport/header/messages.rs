//! Headers of point-to-point messages.

use unisono_collectives::Rank;

use super::Header;
use crate::codes::Codes;
use crate::dtype::DType;
use crate::record::{Doing, FIRST_OF_MESSAGES, Record, State};
use crate::status::StatusBoard;
use crate::transport::Failure;

impl Header {
    /// Returns the header of a message of `size_bytes` bytes. Its sender numbers the messages to each rank, and its receiver
    /// ignores the number: the tag determines the receive that gets the message.
    pub(in crate::transport) fn of_message(
        dtype: DType,
        size_bytes: usize,
        (tag, label): (u32, u64),
        number: u64,
    ) -> Self {
        Self {
            sequence: FIRST_OF_MESSAGES + number,
            count: (size_bytes / dtype.size_bytes()) as u64,
            size_bytes: size_bytes as u64,
            label: label as u32,
            history: tag,
            codes: Codes::of_message(dtype),
        }
    }

    pub(in crate::transport) fn tag(&self) -> u32 {
        self.history
    }

    /// Returns the payload size of this message.
    #[inline]
    pub(in crate::transport) fn size_bytes(&self) -> usize {
        self.size_bytes as usize
    }

    /// Compares the header of a message that a receive has matched by its tag with the expected one (`self`).
    pub(in crate::transport) fn check_matched(
        &self,
        theirs: &Self,
        other: Rank,
        status: &StatusBoard,
    ) -> Result<(), Failure> {
        Self { sequence: theirs.sequence, ..*self }.check(theirs, other, status)
    }

    /// Returns the tag in a description of the message, unless it is the default.
    pub(super) fn with_tag(&self) -> String {
        if self.tag() == 0 { String::new() } else { format!(" with tag {}", self.tag()) }
    }

    /// Returns the failure if this rank waits for rank `other` in a message, while the program of `other` waits for this rank in a collective that this
    /// rank has not started. That is a deadlock, unless this rank can start the collective during the message, or messages of `other` are in flight.
    pub(in crate::transport) fn deadlock(&self, other: Rank, status: &StatusBoard) -> Option<Failure> {
        let position = status.position_of(other)?;
        let Doing { state, last, .. } = status.doing(position);
        let waits = |call: &Record| call.waits_for == Some(status.rank()) && !call.is_of_setup();
        let theirs = last.filter(|call| state == State::Inside && waits(call))?;
        status.blocking_call(other, theirs.sequence).filter(|_| !status.has_messages(position))?;
        let begun = status.doing(status.position()).last.filter(|call| !call.is_of_setup());
        let has_begun = begun.is_some_and(|last| last.sequence >= theirs.sequence);
        let mismatch =
            || Failure::Mismatch { ours: self.describe(status), other, theirs: theirs.to_string() };
        (!has_begun).then(mismatch)
    }
}

#[cfg(test)]
mod tests {
    use unisono_collectives::Algorithm;

    use super::*;
    use crate::call::Call;
    use crate::method::Method;
    use crate::transport::Calls;

    fn message(count: usize, tag: u32) -> Header {
        Header::of_message(DType::F32, 4 * count, (tag, 0), 0)
    }

    #[test]
    fn a_message_is_described_with_its_number_label_and_tag() {
        let status = StatusBoard::of_one();
        assert_eq!(message(10, 0).describe(&status), "message #0 of 10 f32");
        let label = status.intern("weights");
        let labelled = Header::of_message(DType::F32, 28, (7, label), 3);
        assert_eq!(labelled.describe(&status), "message #3 \"weights\" of 7 f32 with tag 7");
    }

    #[test]
    fn a_matched_message_may_have_any_number_but_not_any_count() {
        let status = StatusBoard::of_one();
        let later = Header::of_message(DType::F32, 40, (7, 0), 5);
        assert!(message(10, 7).check_matched(&later, 1, &status).is_ok());
        let Err(Failure::Mismatch { ours, other: 1, theirs }) =
            message(9, 7).check_matched(&later, 1, &status)
        else {
            panic!("a mismatch");
        };
        assert_eq!(
            (ours.as_str(), theirs.as_str()),
            ("message #5 of 9 f32 with tag 7", "message #5 of 10 f32 with tag 7")
        );
    }

    #[test]
    fn peer_that_waits_in_a_collective_is_a_deadlock() {
        let statuses = StatusBoard::of_threads(3).unwrap();
        let codes = Codes::new(&Call::barrier(), Method::Algorithm(Algorithm::RecursiveDoubling));
        let barrier = Calls::default().next(1, 0, codes, 0);
        let message = message(10, 0);
        assert!(message.deadlock(1, &statuses[0]).is_none(), "it has made no call");
        let inside = barrier.note(&statuses[1], 0);
        assert!(message.deadlock(1, &statuses[0]).is_none(), "it does not wait");
        statuses[1].waits_for(2, std::time::Duration::ZERO);
        assert!(message.deadlock(1, &statuses[0]).is_none(), "it waits for another");
        statuses[1].waits_for(0, std::time::Duration::ZERO);
        let Some(Failure::Mismatch { ours, other: 1, theirs }) = message.deadlock(1, &statuses[0]) else {
            panic!("a mismatch");
        };
        assert_eq!((ours.as_str(), theirs.as_str()), ("message #0 of 10 f32", "barrier #0"));
        statuses[1].set_in_flight(true);
        assert!(message.deadlock(1, &statuses[0]).is_none(), "its program continues");
        statuses[1].set_in_flight(false);
        statuses[1].message_begins();
        assert!(message.deadlock(1, &statuses[0]).is_none(), "this may be its message");
        statuses[1].message_ends();
        assert!(message.deadlock(1, &statuses[0]).is_some());
        // This rank has completed its part, and the other has not detected that yet.
        barrier.note(&statuses[0], 0).end(true);
        assert!(message.deadlock(1, &statuses[0]).is_none());
        inside.end(true);
    }
}
