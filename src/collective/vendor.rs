//! MPI's own collectives, as a baseline.

use unisono_collectives::Chunks;

use super::{Engine, Options, check_size};
use crate::call::{Call, Ran, Why};
use crate::codes::Codes;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernels::{self, Accumulator, ReduceOp};
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
        let header = self.calls.next(1, call.count, codes, options.label_of(call.operation));
        let recording = header.note(&self.status, buffer.len());
        let parts = call.parts(self.topology.ranks(), options.parts.as_ref());
        let of_ranks: Vec<_> =
            (0..self.topology.ranks()).map(|rank| parts.elements(Chunks::one(rank))).collect();
        let done = self.transport.by_vendor(None, call, &of_ranks, buffer);
        if done.is_ok() && call.op == Some(ReduceOp::Mean) {
            let sums = call.bytes_of(call.result_on(self.transport.rank(), &parts));
            kernels::divide(call.dtype, &mut buffer[sums], self.topology.ranks());
        }
        recording.end(done.is_ok());
        done.map(|()| Ran { method, why: Why::AskedFor, link: method.link(self.transport.name()) })
    }

    /// Refuses a call if the vendor's reduction differs from Unisono's, or if the vendor cannot move the elements.
    pub(super) fn check_vendor(&mut self, method: Method, call: &Call) -> Result<()> {
        if method.vendor() != Some(Vendor::Mpi) {
            return Ok(());
        }
        // Checked here, on all ranks: in the phases of a plan only the ranks of nodes with several ranks would refuse the call, and the others
        // would wait for them.
        let why = match call.op {
            _ if call.count > MOST_ELEMENTS => {
                format!("take at most {MOST_ELEMENTS} elements a call, and not `{}`", call.count)
            }
            _ if call.width != 1 && method == Method::Vendor(Vendor::Mpi) => {
                format!("cannot move elements of `{}` bytes", call.width)
            }
            Some(op @ ReduceOp::Custom(_)) => format!("do not support `{op}`, a custom reduction"),
            // A barrier reduces nothing.
            Some(op) if call.count > 0 => {
                // In the phases of a plan, sums of half-precision elements are accumulated as `f32`.
                let accumulates = method.in_nodes().is_some() && Accumulator::of(call.dtype, op).is_some();
                return self.transport.check_vendor(if accumulates { DType::F32 } else { call.dtype }, op);
            }
            _ => return Ok(()),
        };
        Err(Error::Unsupported(format!("MPI's own collectives {why}; choose another algorithm")))
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
