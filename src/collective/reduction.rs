//! Validation of reductions, and the algorithms that keep the order of ranks.

use unisono_collectives::algorithm::Role;
use unisono_collectives::{Algorithm, Operation};

use super::Engine;
use crate::call::Call;
use crate::error::{Error, Result};
use crate::kernels::ReduceOp;
use crate::select::{Choice, MAX_RANKS};

impl Engine {
    /// Refuses a reduction that is not defined for the call, and a non-commutative one by an algorithm chosen by name that does not keep the order
    /// of ranks.
    #[inline]
    pub(crate) fn check_reduction(&mut self, choice: &Choice, call: &Call) -> Result<()> {
        let Call { operation, op, .. } = *call;
        assert!(
            op.is_some() == operation.reduces(),
            "the reduction of `{operation}` is {op:?}, but calls that reduce have one, and others have none"
        );
        match op {
            None | Some(ReduceOp::Sum | ReduceOp::Min | ReduceOp::Max | ReduceOp::Product) => Ok(()),
            Some(op) => self.check_limited(op, choice, call),
        }
    }

    #[inline(never)]
    fn check_limited(&mut self, op: ReduceOp, choice: &Choice, call: &Call) -> Result<()> {
        check_defined(op, call)?;
        if needs_order(call)
            && let Some((algorithm, _)) = choice.requested(call.size_bytes())
            && self.plan(algorithm, call.operation, false).is_some()
            && self.plan(algorithm, call.operation, true).is_none()
        {
            let keep = self.in_order(call.operation).into_iter().map(Algorithm::name).collect::<Vec<_>>();
            return Err(Error::Unsupported(format!(
                "`{op}` is not commutative, and {algorithm} does not keep the order of ranks in the {}; choose {}",
                call.operation,
                keep.join(" or ")
            )));
        }
        Ok(())
    }

    /// Returns the algorithms that keep the order of ranks in an operation. In large worlds it returns the first one, by the number of steps, because
    /// the check needs the plans of all ranks.
    pub(super) fn in_order(&mut self, operation: Operation) -> Vec<Algorithm> {
        let is_large = self.topology.ranks() > MAX_RANKS;
        let keeps = |algorithm: &Algorithm| self.plan(*algorithm, operation, true).is_some();
        if is_large {
            let few = [Algorithm::usual(Role::FewestSteps), Algorithm::AllToAll];
            return few.into_iter().find(keeps).into_iter().collect();
        }
        Algorithm::ALL.into_iter().filter(keeps).collect()
    }
}

/// Returns whether the operands of a reduction must be combined in the order of ranks.
pub(super) fn needs_order(call: &Call) -> bool {
    call.op.is_some_and(|op| !op.is_commutative())
}

/// Refuses a reduction that is not defined for the operation or the elements.
pub(super) fn check_defined(op: ReduceOp, call: &Call) -> Result<()> {
    let Call { operation, dtype, width, .. } = call;
    let why = match op {
        ReduceOp::Mean if matches!(operation, Operation::Scan | Operation::ExclusiveScan) => {
            let why = "since each rank combines a different number of values; use a sum";
            format!("a {operation} has no mean, {why}")
        }
        ReduceOp::Custom(custom) if custom.element() != (*dtype, *width) => match custom.element() {
            (expected, 1) => format!("`{op}` reduces elements of {expected}, and not of {}", call.elements()),
            (_, bytes) => format!(
                "`{op}` reduces elements of {bytes} bytes, and not of {}; set `element_bytes` for the call",
                call.elements()
            ),
        },
        _ if !op.is_defined_for(*dtype) => {
            format!("{op} is a reduction of integers, but the elements are {dtype}")
        }
        _ => return Ok(()),
    };
    Err(Error::Unsupported(why))
}

#[cfg(test)]
mod tests {
    use unisono_collectives::Topology;

    use super::super::ending::tests::engine;
    use super::*;

    #[test]
    fn large_world_examines_the_plans_of_one_algorithm_that_keeps_the_order() {
        let (mut engine, _folder) = engine();
        engine.topology = Topology::single_node(MAX_RANKS + 1);
        assert_eq!(engine.in_order(Operation::AllReduce), [Algorithm::RecursiveDoubling]);
        assert_eq!(engine.in_order(Operation::Reduce { root: 1 }), [Algorithm::AllToAll]);
    }
}
