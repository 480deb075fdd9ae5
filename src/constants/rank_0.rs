//! Broadcasts from rank 0 by a fixed algorithm: the constants that select one are not agreed on yet.

use unisono_collectives::{Algorithm, Operation};

use crate::call::Call;
use crate::collective::Collective as _;
use crate::communicator::Communicator;
use crate::dtype::Element;
use crate::error::Result;

/// Returns rank 0's text, independent of the texts of the other ranks. Called by all ranks.
pub(super) fn text_of_rank_0(comm: &mut Communicator, text: &str) -> Result<String> {
    let mut size_bytes = [text.len() as u64];
    as_rank_0_has(comm, &mut size_bytes)?;
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(size_bytes[0] as usize, 0);
    if !bytes.is_empty() {
        as_rank_0_has(comm, &mut bytes)?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Broadcasts rank 0's buffer. Called by all ranks.
pub(super) fn as_rank_0_has<T: Element>(comm: &mut Communicator, buffer: &mut [T]) -> Result<()> {
    let call = Call::new(Operation::Broadcast { root: 0 }, None, T::DTYPE, buffer.len());
    let bytes = bytemuck::cast_slice_mut(buffer);
    comm.collective(Algorithm::Tree)?.run(&call, bytes).map(drop)
}
