//! Broadcasts from rank 0 by a fixed algorithm: the constants that select one are not agreed on yet.

use serde::Serialize;
use serde::de::DeserializeOwned;
use unisono_collectives::{Algorithm, Operation};

use crate::call::Call;
use crate::collective::Collective as _;
use crate::communicator::Communicator;
use crate::dtype::Element;
use crate::error::{Error, Result};

/// Returns what rank 0 has, independent of what the other ranks have. Called by all ranks.
pub(super) fn as_rank_0_has<T: Serialize + DeserializeOwned>(comm: &mut Communicator, own: &T) -> Result<T> {
    let mut text = serde_json::to_vec(own).expect("ranks exchange nothing that JSON has not");
    let mut size_bytes = [text.len() as u64];
    broadcast(comm, &mut size_bytes)?;
    text.resize(size_bytes[0] as usize, 0);
    broadcast(comm, &mut text)?;
    serde_json::from_slice(&text)
        .map_err(|error| Error::Launch(format!("what rank 0 has is invalid: {error}")))
}

fn broadcast<T: Element>(comm: &mut Communicator, buffer: &mut [T]) -> Result<()> {
    let call = Call::new(Operation::Broadcast { root: 0 }, None, T::DTYPE, buffer.len());
    let bytes = bytemuck::cast_slice_mut(buffer);
    comm.collective(Algorithm::Tree)?.run(&call, bytes).map(drop)
}
