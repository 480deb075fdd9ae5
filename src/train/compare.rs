//! Whether all ranks hold the same.

use unisono_collectives::Rank;

use super::error::TrainError;
use super::replica::{Parameter, Replica, ReplicaError};
use crate::{Communicator, ReduceOp};

/// Holds this rank's parameters against rank 0's.
///
/// # Errors
/// [`TrainError::ModelsDiffer`] on every rank, with the first difference on the lowest rank that has one.
pub(super) fn parameters(comm: &mut Communicator, own: &[Parameter]) -> Result<(), TrainError> {
    let described: Vec<String> = own.iter().map(describe).collect();
    let text = described.join("\n");
    let theirs = broadcast(comm, text)?;
    let theirs: Vec<&str> = theirs.lines().collect();
    let places = 0..described.len().max(theirs.len());
    let line = |lines: Option<String>| lines.unwrap_or_else(|| "nothing".to_owned());
    let difference =
        places.map(|at| (line(theirs.get(at).map(|&at| at.to_owned())), line(described.get(at).cloned())));
    let difference = difference.into_iter().find(|(theirs, own)| theirs != own);
    let Some(rank) = lowest(comm, difference.is_some())? else { return Ok(()) };
    let found = difference.map(|(theirs, own)| format!("rank 0 has {theirs}, and rank {rank} has {own}"));
    let message = broadcast_from(comm, found.unwrap_or_default(), rank)?;
    Err(TrainError::ModelsDiffer { rank, message })
}

fn describe(parameter: &Parameter) -> String {
    let Parameter { name, shape, is_trained } = parameter;
    let trained = if *is_trained { "" } else { ", not trained" };
    format!("{} {shape:?} f32{trained}", name.replace('\n', " "))
}

/// The hash of all values of a replica.
///
/// # Errors
/// What the framework objects to.
pub(super) fn hash(replica: &mut impl Replica) -> Result<u64, ReplicaError> {
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    for index in 0..replica.parameters().len() {
        replica.with_values(index, &mut |values| hasher.update(bytemuck::cast_slice(values)))?;
    }
    Ok(hasher.digest())
}

/// Holds the hash of this rank's values against those of all others.
///
/// # Errors
/// [`TrainError::ReplicasDiffer`] on every rank, which names the ranks of the minority.
pub(super) fn hashes(comm: &mut Communicator, own: u64) -> Result<(), TrainError> {
    let mut hashes = vec![0; comm.ranks()];
    hashes[comm.rank()] = own;
    comm.all_reduce(&mut hashes, ReduceOp::Max)?;
    let count = |hash: u64| hashes.iter().filter(|&&other| other == hash).count();
    let Some(usual) = hashes.iter().copied().max_by_key(|&hash| (count(hash), hash == hashes[0])) else {
        return Ok(());
    };
    let others: Vec<Rank> = (0..hashes.len()).filter(|&rank| hashes[rank] != usual).collect();
    if others.is_empty() { Ok(()) } else { Err(TrainError::ReplicasDiffer { ranks: others }) }
}

/// The lowest rank for which something is so.
pub(super) fn lowest(comm: &mut Communicator, is_so: bool) -> Result<Option<Rank>, TrainError> {
    let mut lowest = [if is_so { comm.rank() as u64 } else { u64::MAX }];
    comm.all_reduce(&mut lowest, ReduceOp::Min)?;
    Ok((lowest[0] != u64::MAX).then_some(lowest[0] as Rank))
}

/// Rank 0's text.
pub(super) fn broadcast(comm: &mut Communicator, text: String) -> Result<String, TrainError> {
    broadcast_from(comm, text, 0)
}

fn broadcast_from(comm: &mut Communicator, text: String, root: Rank) -> Result<String, TrainError> {
    let mut size = [text.len() as u64];
    comm.broadcast(&mut size, root)?;
    let mut bytes = text.into_bytes();
    bytes.resize(size[0] as usize, 0);
    comm.broadcast(&mut bytes, root)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
