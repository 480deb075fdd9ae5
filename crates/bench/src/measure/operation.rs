//! The operations to measure.

use unisono::{Call, DType, Operation as Collective, ReduceOp};
use unisono_collectives::named;

/// A collective operation with root 0 (if it has a root), a barrier, which has no array, or messages between two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A collective.
    Collective(Collective),
    /// [`Communicator::barrier`](unisono::Communicator::barrier).
    Barrier,
    /// Messages between the first and the last rank.
    SendRecv,
}

impl From<Collective> for Operation {
    fn from(collective: Collective) -> Self {
        Self::Collective(collective)
    }
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; Collective::all(0).len() + 2] = {
        let mut all = [Self::Barrier; Collective::all(0).len() + 2];
        let mut index = 0;
        while index < Collective::all(0).len() {
            all[index] = Self::Collective(Collective::all(0)[index]);
            index += 1;
        }
        all[index + 1] = Self::SendRecv;
        all
    };

    /// Returns the name on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Collective(collective) => collective.name(),
            Self::Barrier => "barrier",
            Self::SendRecv => "send-recv",
        }
    }

    pub(crate) fn collective(self) -> Option<Collective> {
        match self {
            Self::Collective(collective) => Some(collective),
            Self::Barrier | Self::SendRecv => None,
        }
    }

    /// Returns whether values are reduced, or only moved.
    pub fn reduces(self) -> bool {
        self.collective().is_some_and(Collective::reduces)
    }

    /// Returns a call on an array of about this many bytes: at least one element, and a multiple of the number of ranks if each
    /// rank has a part of equal size.
    pub(super) fn call(self, dtype: DType, op: ReduceOp, size_bytes: usize, ranks: usize) -> Call {
        let count = (size_bytes / dtype.size_bytes()).max(1);
        let operation = match self {
            Self::Collective(operation) => operation,
            Self::Barrier => return Call::barrier(),
            // A message has the values of a broadcast between two ranks.
            Self::SendRecv => Collective::Broadcast { root: 0 },
        };
        let parts = if operation == Collective::AllToAll { ranks } else { 1 };
        let count = count.next_multiple_of(parts);
        Call::new(operation, operation.reduces().then_some(op), dtype, count)
    }

    /// Returns the ratio of bus bandwidth to array bandwidth, as nccl-tests defines it.
    pub(super) fn bus_factor(self, ranks: usize) -> f64 {
        match self {
            Self::Collective(collective) => collective.bus_factor(ranks),
            Self::Barrier => 0.0,
            Self::SendRecv => 1.0,
        }
    }
}

named!(Operation, "operation");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_a_name_and_a_call() {
        for operation in Operation::ALL {
            assert_eq!(operation.name().parse(), Ok(operation));
            let call = operation.call(DType::F32, ReduceOp::Sum, 1000, 3);
            assert_eq!(call.op.is_some(), operation.reduces() || operation == Operation::Barrier);
            let count = match operation {
                Operation::Barrier => 0,
                Operation::Collective(Collective::AllToAll) => 252,
                _ => 250,
            };
            assert_eq!(call.count, count, "{operation}");
        }
        assert_eq!(Operation::from(Collective::AllToAll).call(DType::F64, ReduceOp::Sum, 1, 5).count, 5);
    }

    #[test]
    fn bus_factors_match_nccl_tests() {
        let factors = Operation::ALL.map(|operation| operation.bus_factor(4));
        assert_eq!(factors, [1.5, 0.75, 0.75, 1.0, 1.0, 0.75, 0.75, 0.75, 1.0, 1.0, 0.0, 1.0]);
    }
}
