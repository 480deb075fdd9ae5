//! The reductions that a call may have, and the algorithms that keep the order of ranks.

use unisono_collectives::algorithm::Role;
use unisono_collectives::{Algorithm, Operation};

use super::Engine;
use crate::call::Call;
use crate::error::{Error, Result};
use crate::kernels::ReduceOp;
use crate::select::{Choice, MOST_RANKS};

impl Engine {
    /// # Errors
    /// [`Error::Unsupported`] for a reduction that is not defined for the call, and for an algorithm chosen by name that does not keep
    /// the order of ranks if the reduction needs it.
    #[inline]
    pub(crate) fn check_reduction(&mut self, choice: &Choice, call: &Call) -> Result<()> {
        match call.op {
            None | Some(ReduceOp::Sum | ReduceOp::Min | ReduceOp::Max | ReduceOp::Product) => Ok(()),
            Some(op) => self.check_limited(op, choice, call),
        }
    }

    #[inline(never)]
    fn check_limited(&mut self, op: ReduceOp, choice: &Choice, call: &Call) -> Result<()> {
        check_defined(op, call)?;
        if needs_order(call)
            && let Some((algorithm, _)) = choice.wished(call.size_bytes())
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

    /// Returns the algorithms that keep the order of ranks in an operation. In large worlds, only those are considered that have few
    /// steps or few bytes, since the plans of all ranks are compared.
    pub(super) fn in_order(&mut self, operation: Operation) -> Vec<Algorithm> {
        let is_large = self.topology.ranks() > MOST_RANKS;
        let few = [Algorithm::usual(Role::FewestSteps), Algorithm::AllToAll];
        let considered = |algorithm: &Algorithm| !is_large || few.contains(algorithm);
        let mut keeps = |algorithm: &Algorithm| self.plan(*algorithm, operation, true).is_some();
        Algorithm::ALL.into_iter().filter(considered).filter(|algorithm| keeps(algorithm)).collect()
    }
}

/// Returns whether the operands of a reduction must be combined in the order of ranks.
pub(super) fn needs_order(call: &Call) -> bool {
    call.op.is_some_and(|op| !op.is_commutative())
}

/// # Errors
/// [`Error::Unsupported`] for a reduction that is not defined for the operation or the elements.
pub(super) fn check_defined(op: ReduceOp, call: &Call) -> Result<()> {
    let Call { operation, dtype, width, .. } = call;
    let why = match op {
        ReduceOp::Mean if matches!(operation, Operation::Scan | Operation::ExclusiveScan) => {
            let why = "since every rank has the values of another number of ranks; use a sum";
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
            format!("{op} is a reduction of integers, and the elements are {dtype}")
        }
        _ => return Ok(()),
    };
    Err(Error::Unsupported(why))
}
