//! Message headers, which identify the collective of a message.

use bytemuck::{Pod, Zeroable};
use unisono_collectives::Rank;

use super::Failure;
use crate::codes::Codes;
use crate::record::{FIRST_OF_MESSAGES, described, elements};
use crate::status::{RECORDS, Recording, StatusBoard};

mod messages;

/// The header of every message: the collective of its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Header {
    sequence: u64,
    count: u64,
    size_bytes: u64,
    /// The hash of the call's label; 0 without one.
    label: u32,
    /// A hash of all calls before this one; the tag of a point-to-point message.
    history: u32,
    codes: Codes,
}

impl Header {
    /// Returns a header with only a number, for tests.
    #[cfg(all(test, loom))]
    pub(crate) fn numbered(sequence: u64) -> Self {
        Self { sequence, ..bytemuck::Zeroable::zeroed() }
    }

    /// Returns the sequence number of the call.
    #[inline]
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the facts that ranks must agree on, except the label: the codes of the call, and its number of elements.
    #[cfg(feature = "nccl")]
    pub(crate) fn kind(&self) -> (u64, u64) {
        (self.codes.bits(), self.count)
    }

    /// Returns whether this is a point-to-point message rather than part of a collective.
    pub(super) fn is_message(&self) -> bool {
        self.codes.is_message()
    }

    pub(crate) fn operation(&self) -> &'static str {
        self.codes.operation()
    }

    pub(super) fn reduces(&self) -> bool {
        self.codes.op().is_some()
    }

    /// Records the start of the call in this rank's flight recorder.
    #[inline]
    pub(crate) fn note<'a>(&self, status: &'a StatusBoard, size_bytes: usize) -> Recording<'a> {
        status.begin(self.sequence, self.count, self.codes, self.label.into(), size_bytes)
    }

    /// Returns the header for a later sequence number of the call.
    #[cfg(feature = "nccl")]
    pub(crate) fn later(self, numbers: u64) -> Self {
        Self { sequence: self.sequence + numbers, ..self }
    }

    pub(super) fn of_size(self, size_bytes: usize) -> Self {
        Self { size_bytes: size_bytes as u64, ..self }
    }

    /// Describes the sender's call, with the name of its label if the status board has it.
    fn describe(&self, status: &StatusBoard) -> String {
        let Self { sequence, count, codes, label, .. } = self;
        let number = if self.is_message() { sequence.wrapping_sub(FIRST_OF_MESSAGES) } else { *sequence };
        let mut text = format!("{} #{number}", codes.operation());
        if *label != 0 {
            text += &status
                .label((*label).into())
                .map_or(" with another label".to_owned(), |name| format!(" {name:?}"));
        }
        if codes.is_barrier() {
            return text;
        }
        let call = described(&text, &elements(*count, &codes.dtype()), codes.op(), codes.root());
        if self.is_message() { call + &self.with_tag() } else { format!("{call}, by {}", codes.method()) }
    }

    /// Returns a digest for messages that do not contain the header. Two different headers collide with probability 2^-64.
    #[inline]
    pub(super) fn digest(&self) -> u64 {
        // Each word has its own odd factor, so that no two words compensate each other. The products are computed in parallel, since the digest
        // delays the message.
        const FACTORS: [u64; 5] = [
            0x9e37_79b9_7f4a_7c15,
            0xbf58_476d_1ce4_e5b9,
            0x94d0_49bb_1331_11eb,
            0xd6e8_feb8_6659_fd93,
            0xa076_1d64_78bd_642f,
        ];
        let words = bytemuck::cast_ref::<Self, [u64; 5]>(self);
        words.iter().zip(FACTORS).fold(0, |sum: u64, (word, factor)| {
            let product = u128::from(*word ^ factor) * u128::from(factor);
            sum.rotate_left(11) ^ (product as u64) ^ ((product >> 64) as u64)
        })
    }

    /// Compares the header of a message from rank `other` with the expected one.
    #[inline]
    pub(super) fn check(&self, theirs: &Self, other: Rank, status: &StatusBoard) -> Result<(), Failure> {
        // Word by word in registers: comparing arrays would call `memcmp`.
        let words = bytemuck::cast_ref::<Self, [u64; 5]>;
        let differences =
            words(theirs).iter().zip(words(self)).fold(0, |all, (one, other)| all | (one ^ other));
        if differences == 0 { Ok(()) } else { Err(self.mismatch(theirs, other, status)) }
    }

    #[cold]
    fn mismatch(&self, theirs: &Self, other: Rank, status: &StatusBoard) -> Failure {
        let is_later = self.history != theirs.history && !self.is_message();
        let differing = if is_later { self.first_difference(other, status) } else { None };
        let (one, another) = differing.as_ref().map_or((self, theirs), |(one, another)| (one, another));
        let (mut ours, mut theirs_called) = (one.describe(status), another.describe(status));
        let look_equal = ours == theirs_called || !ours.is_ascii() && !theirs_called.is_ascii();
        if one.label != another.label && look_equal {
            ours += &format!(" (its label is {:08x})", one.label);
            theirs_called += &format!(" (its label is {:08x})", another.label);
        } else if ours == theirs_called && is_later {
            let before = self.recorded_call(self.sequence.wrapping_sub(1), status.rank(), status);
            ours += &before.map_or(String::new(), |before| format!(" (after {})", before.describe(status)));
            theirs_called += " after other calls";
        } else if ours == theirs_called {
            ours += &format!(" (a message of {} bytes)", self.size_bytes);
            theirs_called += &format!(" (a message of {} bytes)", theirs.size_bytes);
        }
        Failure::Mismatch { ours, other, theirs: theirs_called }
    }

    /// Returns the mismatch with rank `other`, whose calls up to this one differ from this rank's.
    #[cfg(feature = "nccl")]
    pub(crate) fn mismatch_with(&self, other: Rank, status: &StatusBoard) -> Failure {
        let theirs = self.recorded_call(self.sequence, other, status).unwrap_or(*self);
        self.mismatch(&Self { history: !self.history, ..theirs }, other, status)
    }

    /// Returns the first call before this one in which this rank and another differ, if both calls are still recorded here.
    fn first_difference(&self, other: Rank, status: &StatusBoard) -> Option<(Self, Self)> {
        let both = |sequence| {
            let called = |rank| self.recorded_call(sequence, rank, status);
            called(status.rank()).zip(called(other)).filter(|(ours, theirs)| ours != theirs)
        };
        (self.sequence.saturating_sub(RECORDS as u64)..self.sequence).find_map(both)
    }

    /// Returns the call of a rank with this sequence number, if it is recorded here.
    fn recorded_call(&self, sequence: u64, rank: Rank, status: &StatusBoard) -> Option<Self> {
        let (count, codes, label) = status.called(rank, sequence)?;
        Some(Self { sequence, count, codes, label: label as u32, ..*self })
    }

    /// Checks the header of an unexpected message, which shows the call of rank `other`. Otherwise two ranks that make different calls with the same
    /// sequence number might wait for each other until the deadline.
    pub(super) fn check_unexpected(
        &self,
        theirs: &Self,
        other: Rank,
        status: &StatusBoard,
    ) -> Result<(), Failure> {
        let same_size = theirs.of_size(self.size_bytes as usize);
        if theirs.sequence == self.sequence { self.check(&same_size, other, status) } else { Ok(()) }
    }

    /// Checks the call with the same sequence number of rank `other`, the awaited rank. That rank may be waiting itself, or have finished its
    /// call, and never send the expected message.
    pub(super) fn check_called(&self, other: Rank, status: &StatusBoard) -> Result<(), Failure> {
        self.recorded_call(self.sequence, other, status)
            .map_or(Ok(()), |theirs| self.check(&theirs, other, status))
    }
}

/// The sequence number of a rank's next call, and a hash of the earlier ones. Ranks that differ in a call may both complete it, and
/// detect the difference at the next message.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pub(crate) sequence: u64,
    history: u64,
}

impl Calls {
    /// Returns the mismatch if rank `other`, for which this rank waits in a call without a number, `ours`, is blocked in a call that this
    /// rank has not made. Calls in flight do not keep it from making the awaited one.
    pub(crate) fn mismatch(&self, ours: &str, other: Rank, status: &StatusBoard) -> Option<Failure> {
        let Self { sequence, .. } = *self;
        let (count, codes, label) = status.blocking_call(other, sequence)?;
        let theirs = Header { sequence, count, codes, label: label as u32, ..Zeroable::zeroed() };
        Some(Failure::Mismatch { ours: ours.to_owned(), other, theirs: theirs.describe(status) })
    }

    #[cfg(feature = "nccl")]
    pub(crate) fn history(&self) -> u64 {
        self.history
    }

    /// Returns the header of the next call, which uses this many sequence numbers.
    #[inline]
    pub(crate) fn next(&mut self, numbers: u64, count: usize, codes: Codes, label: u64) -> Header {
        let Self { sequence, history, .. } = *self;
        let (count, label) = (count as u64, label as u32);
        let header = Header { sequence, count, size_bytes: 0, label, history: (history >> 32) as u32, codes };
        self.sequence += numbers;
        // Like FNV-1a, but on words. A bit affects those above it, and the upper half is transmitted.
        let step = |hash: u64, word: u64| (hash ^ word ^ (word >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.history = [codes.bits(), count, label.into()].into_iter().fold(history.rotate_left(32), step);
        header
    }
}

#[cfg(test)]
mod tests {
    use unisono_collectives::{Algorithm, Operation};

    use super::*;
    use crate::call::Call;
    use crate::dtype::DType;
    use crate::kernels::ReduceOp;
    use crate::method::Method;

    const RING: Method = Method::Algorithm(Algorithm::Ring);

    fn header(sequence: u64, count: usize) -> Header {
        let call = Call::all_reduce(DType::BF16, ReduceOp::Mean, count);
        Calls { sequence, ..Calls::default() }.next(1, count, Codes::new(&call, RING), 0)
    }

    #[test]
    fn header_describes_the_call() {
        let call = Call {
            operation: Operation::Reduce { root: 3 },
            ..Call::all_reduce(DType::I64, ReduceOp::Max, 5)
        };
        let codes = Codes::new(&call, Method::Algorithm(Algorithm::Tree));
        let text =
            Calls { sequence: 7, ..Calls::default() }.next(1, 5, codes, 0).describe(&StatusBoard::of_one());
        assert_eq!(text, "reduce #7 of 5 i64, max, root 3, by tree");
    }

    #[test]
    fn mismatch_names_both_calls() {
        let Err(Failure::Mismatch { ours, other, theirs }) =
            header(0, 10).check(&header(0, 11), 4, &StatusBoard::of_one())
        else {
            panic!("a mismatch");
        };
        assert_eq!(ours, "all-reduce #0 of 10 bf16, mean, by ring");
        assert_eq!((other, theirs.as_str()), (4, "all-reduce #0 of 11 bf16, mean, by ring"));
        let Err(Failure::Mismatch { ours, .. }) =
            header(0, 10).of_size(8).check(&header(0, 10).of_size(4), 4, &StatusBoard::of_one())
        else {
            panic!("a mismatch");
        };
        assert!(ours.ends_with("(a message of 8 bytes)"));
    }

    #[test]
    fn differing_labels_are_named_if_known() {
        let status = StatusBoard::of_one();
        let call = Call::all_reduce(DType::BF16, ReduceOp::Mean, 10);
        let labelled =
            |label| Calls { sequence: 5, ..Calls::default() }.next(1, 10, Codes::new(&call, RING), label);
        let known = status.intern("bucket 2");
        assert!(labelled(known).check(&labelled(known), 1, &status).is_ok());
        let Err(Failure::Mismatch { ours, theirs, .. }) = labelled(known).check(&labelled(99), 1, &status)
        else {
            panic!("a mismatch");
        };
        assert_eq!(ours, "all-reduce #5 \"bucket 2\" of 10 bf16, mean, by ring");
        assert_eq!(theirs, "all-reduce #5 with another label of 10 bf16, mean, by ring");
        assert!(labelled(known).check(&labelled(0), 1, &status).is_err(), "one has none");
    }

    #[test]
    fn differing_labels_have_different_texts() {
        let status = StatusBoard::of_one();
        let call = Call::all_reduce(DType::BF16, ReduceOp::Mean, 10);
        let labelled =
            |name: &str| Calls::default().next(1, 10, Codes::new(&call, RING), status.intern(name));
        let long = "the gradients of the layer transformer.blocks.12.attention.";
        for (one, other) in
            [(format!("{long}query"), format!("{long}value")), ("é".into(), "e\u{301}".into())]
        {
            let (one, other) = (labelled(&one), labelled(&other));
            let Err(Failure::Mismatch { ours, theirs, .. }) = one.check(&other, 1, &status) else {
                panic!("a mismatch");
            };
            let plain = |text: &str| text.replace("e\u{301}", "é");
            assert_ne!(plain(&ours), plain(&theirs));
        }
        // Neither label is known here.
        let unknown = |label| Calls::default().next(1, 10, Codes::new(&call, RING), label);
        let Err(Failure::Mismatch { ours, theirs, .. }) = unknown(7).check(&unknown(8), 1, &status) else {
            panic!("a mismatch");
        };
        assert!(ours.ends_with("(its label is 00000007)") && theirs.ends_with("(its label is 00000008)"));
    }

    #[test]
    fn barrier_is_described_as_a_barrier() {
        let status = StatusBoard::of_one();
        let codes = Codes::new(&Call::barrier(), Method::Algorithm(Algorithm::RecursiveDoubling));
        let barrier = Calls { sequence: 3, ..Calls::default() }.next(1, 0, codes, 0);
        assert_eq!(barrier.describe(&status), "barrier #3");
        let _ = barrier.note(&status, 0);
        assert_eq!(status.records(0)[0].to_string(), "barrier #3");
        assert_eq!(size_of::<Header>(), 40);
    }

    #[test]
    fn unexpected_message_of_another_call_is_no_mismatch() {
        let status = StatusBoard::of_one();
        assert!(header(3, 10).check_unexpected(&header(4, 99), 1, &status).is_ok());
        assert!(header(3, 10).check_unexpected(&header(3, 10).of_size(4), 1, &status).is_ok());
        assert!(header(3, 10).check_unexpected(&header(3, 99), 1, &status).is_err());
    }

    #[test]
    fn recorded_call_is_checked_without_a_message() {
        let statuses = StatusBoard::of_threads(2).unwrap();
        let _ = header(3, 10).note(&statuses[1], 0);
        assert!(header(3, 10).of_size(8).check_called(1, &statuses[0]).is_ok());
        assert!(header(4, 99).check_called(1, &statuses[0]).is_ok(), "it has not made this call yet");
        let _ = header(4, 10).note(&statuses[1], 0);
        let Err(Failure::Mismatch { ours, theirs, .. }) = header(3, 99).check_called(1, &statuses[0]) else {
            panic!("a mismatch, though the other is in a later call");
        };
        assert!(ours.contains("#3 of 99 ") && theirs.contains("#3 of 10 "), "{ours} {theirs}");
    }

    #[test]
    fn only_a_blocking_call_of_another_rank_is_in_place_of_an_unnumbered_one() {
        let statuses = StatusBoard::of_threads(2).unwrap();
        let differs =
            || Calls { sequence: 3, ..Calls::default() }.mismatch("a plan", 1, &statuses[0]).is_some();
        let recording = header(3, 10).note(&statuses[1], 0);
        assert!(differs());
        statuses[1].set_in_flight(true);
        assert!(!differs(), "its communication thread makes the call");
        statuses[1].set_in_flight(false);
        recording.end(true);
        assert!(!differs(), "the call has ended");
    }

    #[test]
    fn next_message_reports_an_earlier_call_that_differed() {
        let statuses = StatusBoard::of_threads(2).unwrap();
        let mut all_calls = [Calls::default(), Calls::default()];
        let mut call = |rank: usize, count| {
            let call = Call::all_reduce(DType::BF16, ReduceOp::Mean, count);
            let header = all_calls[rank].next(1, count, Codes::new(&call, RING), 0);
            let _ = header.note(&statuses[rank], 0);
            header
        };
        let same = [10, 20].map(|count| (call(0, count), call(1, count)));
        assert!(same.iter().all(|(one, other)| one.check(other, 1, &statuses[0]).is_ok()));
        let _ = (call(0, 5), call(1, 6));
        let (one, other) = (call(0, 30), call(1, 30));
        let mismatch = |status| match one.check(&other, 1, status) {
            Err(Failure::Mismatch { ours, theirs, .. }) => (ours, theirs),
            _ => panic!("a mismatch"),
        };
        let (ours, theirs) = mismatch(&statuses[0]);
        assert!(ours.contains("#2 of 5 ") && theirs.contains("#2 of 6 "), "{ours} {theirs}");
        // Without a common status board, the calls of the other rank are not known.
        let (ours, theirs) = mismatch(&StatusBoard::of_one());
        assert!(ours.contains("#3 of 30 ") && theirs.ends_with(" after other calls"), "{ours} {theirs}");
    }
}
