//! What the library itself wants to know of all ranks.

use unisono_collectives::Operation;

use super::Communicator;
use crate::call::{Call, Ran};
use crate::collective::Collective as _;
use crate::dtype::Element;
use crate::error::Result;
use crate::kernels::ReduceOp;
use crate::select::Choice;

impl Communicator {
    /// An all-reduce by our own algorithms, whatever was chosen for the program's: a vendor may have none of this type and
    /// reduction.
    pub(crate) fn all_reduce_by_ours<T: Element>(&mut self, buffer: &mut [T], op: ReduceOp) -> Result<Ran> {
        let choice = match self.choice.on_host(Operation::AllReduce) {
            Choice::Vendor(_) => Choice::Auto,
            Choice::InNodes(algorithm, _) => Choice::Algorithm(*algorithm),
            ours => ours.clone(),
        };
        let call = Call::all_reduce(T::DTYPE, op, buffer.len());
        self.collective(choice)?.run(&call, bytemuck::cast_slice_mut(buffer))
    }
}
