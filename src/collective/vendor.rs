//! MPI's own collectives, as a baseline.

use super::options::Options;
use super::{Engine, check_size};
use crate::call::{Call, Ran, Why};
use crate::codes::Codes;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernels::{Accumulator, ReduceOp};
use crate::method::{Method, Vendor};

/// The largest count that fits MPI's `int`.
const MOST_ELEMENTS: usize = i32::MAX as usize;

impl Engine {
    /// Carries out a call by the vendor's own collective. It has no deadline, and the vendor determines the order of the reduction.
    pub(super) fn run_by_vendor(&mut self, options: &Options, call: &Call, buffer: &mut [u8]) -> Result<Ran> {
        check_size(call, buffer);
        let method = Method::Vendor(Vendor::Mpi);
        self.check_vendor(method, call)?;
        let codes = Codes::new(call, method);
        let header = self.calls.next(1, call.count, codes, options.label);
        let recording = header.note(&self.status, buffer.len());
        let parts = call.parts(self.topology.ranks(), options.parts.as_ref());
        let done = self.transport.vendor_call(call, &parts, buffer);
        if done.is_ok() && call.op == Some(ReduceOp::Mean) {
            let sums = call.bytes_of(call.result_on(self.transport.rank(), &parts));
            crate::kernels::divide(call.dtype, &mut buffer[sums], self.topology.ranks());
        }
        recording.end(done.is_ok());
        done.map(|()| Ran { method, why: Why::AskedFor, link: method.link(self.transport.name()) })
    }

    /// # Errors
    /// [`Error::Unsupported`] if the vendor's reduction differs from Unisono's, or if the vendor cannot move the elements.
    pub(super) fn check_vendor(&mut self, method: Method, call: &Call) -> Result<()> {
        // Checked here, on all ranks: in the phases of a plan only the ranks of nodes with several ranks would refuse the call, and the others
        // would wait for them.
        if method.vendor() == Some(Vendor::Mpi) && call.count > MOST_ELEMENTS {
            return Err(Error::Unsupported(format!(
                "MPI's own collectives take at most {MOST_ELEMENTS} elements a call, and not `{}`; choose another algorithm",
                call.count
            )));
        }
        if call.width != 1 && method == Method::Vendor(Vendor::Mpi) {
            return Err(Error::Unsupported(format!(
                "MPI's own collectives cannot move elements of `{}` bytes; choose another algorithm",
                call.width
            )));
        }
        if method.vendor() == Some(Vendor::Mpi)
            && let Some(op @ ReduceOp::Custom(_)) = call.op
        {
            return Err(Error::Unsupported(format!(
                "MPI's own collectives do not support `{op}`, a custom reduction; choose another algorithm"
            )));
        }
        let accumulates = |op| match method {
            // Sums of half-precision elements are accumulated as `f32`.
            Method::InNodes(_, Vendor::Mpi) => Some(Accumulator::of(call.dtype, op).is_some()),
            Method::Vendor(Vendor::Mpi) => Some(false),
            _ => None,
        };
        // A barrier reduces nothing.
        let reduces = call.op.filter(|_| call.count > 0);
        let Some((op, accumulates)) = reduces.and_then(|op| Some((op, accumulates(op)?))) else {
            return Ok(());
        };
        self.transport.check_vendor(if accumulates { DType::F32 } else { call.dtype }, op)
    }
}

#[cfg(test)]
mod tests {
    use unisono_collectives::Algorithm;

    use super::super::ending::tests::engine;
    use super::*;

    #[test]
    fn counts_beyond_an_int_are_refused_before_the_call() {
        let (mut engine, _folder) = engine();
        let call = Call::all_reduce(DType::U8, ReduceOp::Sum, MOST_ELEMENTS + 1);
        for method in [Method::Vendor(Vendor::Mpi), Method::InNodes(Algorithm::Rail, Vendor::Mpi)] {
            let refused = engine.check_vendor(method, &call).unwrap_err();
            assert!(matches!(&refused, Error::Unsupported(why) if why.contains("2147483648")), "{refused}");
        }
        assert!(engine.check_vendor(Method::Algorithm(Algorithm::Rail), &call).is_ok());
    }
}
