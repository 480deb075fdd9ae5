//! What ranks tell each other of the collective that they are in.

use bytemuck::{Pod, Zeroable};
use unisono_collectives::{Operation, Rank};

use super::Failure;
use crate::call::Call;
use crate::dtype::DType;
use crate::means::Means;
use crate::reduce::ReduceOp;

/// What every message begins with: which collective it belongs to, in the eyes of its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Header {
    sequence: u64,
    count: u64,
    /// The size of this message's payload.
    size_bytes: u64,
    /// The root, or `u32::MAX`.
    root: u32,
    operation: u8,
    /// The reduction, or `u8::MAX`.
    op: u8,
    dtype: u8,
    means: u8,
}

impl Header {
    pub(crate) fn new(sequence: u64, call: &Call, means: Means) -> Self {
        Self {
            sequence,
            count: call.count as u64,
            size_bytes: 0,
            root: call.operation.root().map_or(u32::MAX, |root| root as u32),
            operation: operation_code(call.operation),
            op: call.op.map_or(u8::MAX, |op| op as u8),
            dtype: call.dtype as u8,
            means: means.code(),
        }
    }

    pub(super) fn of_size(self, size_bytes: usize) -> Self {
        Self { size_bytes: size_bytes as u64, ..self }
    }

    /// What the sender called, in words.
    fn describe(&self) -> String {
        let name = |names: &[&'static str], code: u8| names.get(usize::from(code)).copied().unwrap_or("?");
        let operation = name(&Operation::all(0).map(Operation::name), self.operation);
        let dtype = name(&DType::ALL.map(DType::name), self.dtype);
        let means = name(&Means::ALL.map(Means::name), self.means);
        let mut text = format!("{operation} #{} of {} {dtype}", self.sequence, self.count);
        if self.op != u8::MAX {
            text += &format!(", {}", name(&ReduceOp::ALL.map(ReduceOp::name), self.op));
        }
        if self.root != u32::MAX {
            text += &format!(", root {}", self.root);
        }
        text + &format!(", by {means}")
    }

    /// Holds the header of a message from rank `other` against what is expected of it.
    pub(super) fn check(&self, theirs: &Self, other: Rank) -> Result<(), Failure> {
        if theirs == self {
            return Ok(());
        }
        let (mut ours, mut theirs_called) = (self.describe(), theirs.describe());
        if ours == theirs_called {
            ours += &format!(" (a message of {} bytes)", self.size_bytes);
            theirs_called += &format!(" (a message of {} bytes)", theirs.size_bytes);
        }
        Err(Failure::Mismatch { ours, other, theirs: theirs_called })
    }

    /// Looks at the header of a message that is not awaited now, but tells what rank `other` is doing: two
    /// ranks that are in the same place of the order of calls and call different things may otherwise wait
    /// for each other for ever.
    pub(super) fn check_overheard(&self, theirs: &Self, other: Rank) -> Result<(), Failure> {
        let same_size = theirs.of_size(self.size_bytes as usize);
        if theirs.sequence == self.sequence { self.check(&same_size, other) } else { Ok(()) }
    }
}

/// The position among all operations.
fn operation_code(operation: Operation) -> u8 {
    match operation {
        Operation::AllReduce => 0,
        Operation::ReduceScatter => 1,
        Operation::AllGather => 2,
        Operation::Broadcast { .. } => 3,
        Operation::Reduce { .. } => 4,
        Operation::Gather { .. } => 5,
        Operation::Scatter { .. } => 6,
        Operation::AllToAll => 7,
    }
}

#[cfg(test)]
mod tests {
    use unisono_collectives::Algorithm;

    use super::*;

    const RING: Means = Means::Algorithm(Algorithm::Ring);

    fn header(sequence: u64, count: usize) -> Header {
        Header::new(sequence, &Call::all_reduce(DType::BF16, ReduceOp::Mean, count), RING)
    }

    #[test]
    fn every_operation_has_its_code() {
        for (code, operation) in Operation::all(0).into_iter().enumerate() {
            assert_eq!(usize::from(operation_code(operation)), code);
        }
    }

    #[test]
    fn a_header_says_what_was_called() {
        let call = Call {
            operation: Operation::Reduce { root: 3 },
            ..Call::all_reduce(DType::I64, ReduceOp::Max, 5)
        };
        let text = Header::new(7, &call, Means::Algorithm(Algorithm::Tree)).describe();
        assert_eq!(text, "reduce #7 of 5 i64, max, root 3, by tree");
    }

    #[test]
    fn a_mismatch_names_both_sides() {
        let Err(Failure::Mismatch { ours, other, theirs }) = header(0, 10).check(&header(0, 11), 4) else {
            panic!("a mismatch");
        };
        assert_eq!(ours, "all-reduce #0 of 10 bf16, mean, by ring");
        assert_eq!((other, theirs.as_str()), (4, "all-reduce #0 of 11 bf16, mean, by ring"));
        let Err(Failure::Mismatch { ours, .. }) =
            header(0, 10).of_size(8).check(&header(0, 10).of_size(4), 4)
        else {
            panic!("a mismatch");
        };
        assert!(ours.ends_with("(a message of 8 bytes)"));
    }

    #[test]
    fn what_is_overheard_of_another_call_in_the_order_is_no_mismatch() {
        assert!(header(3, 10).check_overheard(&header(4, 99), 1).is_ok());
        assert!(header(3, 10).check_overheard(&header(3, 10).of_size(4), 1).is_ok());
        assert!(header(3, 10).check_overheard(&header(3, 99), 1).is_err());
    }
}
