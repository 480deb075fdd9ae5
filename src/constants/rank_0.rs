//! Broadcasts from rank 0 by a fixed algorithm, since the constants that select one are not agreed on yet.

use serde::Serialize;
use serde::de::DeserializeOwned;
use unisono_collectives::{Algorithm, Operation};

use crate::call::Call;
use crate::collective::Collective as _;
use crate::communicator::Communicator;
use crate::dtype::Element;
use crate::error::{Error, Result};

/// Returns rank 0's value on all ranks, which all call it.
pub(super) fn broadcast_from_rank_0<T: Serialize + DeserializeOwned>(
    comm: &mut Communicator,
    own: &T,
) -> Result<T> {
    let mut text = serde_json::to_vec(own).expect("the value can be written as JSON");
    let mut size_bytes = [text.len() as u64];
    broadcast(comm, &mut size_bytes)?;
    text.resize(size_bytes[0] as usize, 0);
    broadcast(comm, &mut text)?;
    serde_json::from_slice(&text)
        .map_err(|error| Error::Launch(format!("invalid value from rank 0: {error}")))
}

fn broadcast<T: Element>(comm: &mut Communicator, buffer: &mut [T]) -> Result<()> {
    let call = Call::new(Operation::Broadcast { root: 0 }, None, T::DTYPE, buffer.len());
    let bytes = bytemuck::cast_slice_mut(buffer);
    comm.collective(Algorithm::Tree)?.run(&call, bytes).map(drop)
}
