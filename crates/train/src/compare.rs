//! Checks that all ranks hold the same values.

use std::collections::HashSet;

use serde::Serialize;
use serde::de::DeserializeOwned;
use unisono_collectives::Rank;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::checkpoint::{RESERVED, Tensor};
use crate::optimizer::Exploded;
use crate::{Parameter, Replica, ReplicaError, TrainError};
use unisono::Communicator;
use unisono::internals::gather;

/// The maximum number of listed texts of one kind in a message. Further ones are counted.
pub(super) const MOST_TOLD: usize = 8;

/// Compares this rank's parameters with rank 0's. All ranks return the differences of the lowest rank that has any. Called by all ranks.
pub(super) fn parameters(comm: &mut Communicator, own: &[Parameter]) -> Result<(), TrainError> {
    let described: Vec<Described> = own.iter().map(describe).collect();
    let theirs: Vec<Described> = broadcast(comm, &described)?;
    let ranks = all_where(comm, described != theirs)?;
    let Some(&lowest) = ranks.first() else { return Ok(()) };
    let message = broadcast_from(comm, &differences(&theirs, &described, comm.rank()), lowest)?;
    Err(TrainError::ModelsDiffer { ranks, message })
}

/// Compares this rank's parameters, which are saved by their names, with rank 0's. Called by all ranks.
///
/// # Errors
/// [`TrainError::ModelsDiffer`]; [`TrainError::Setting`] on every rank if two parameters have the same name, or one a reserved name.
pub fn model(comm: &mut Communicator, own: &[Parameter]) -> Result<(), TrainError> {
    parameters(comm, own)?;
    distinct(own.iter().map(|parameter| &parameter.name))
}

/// Checks that a checkpoint can store the parameters of a model by these names.
pub(super) fn distinct<'a>(mut names: impl Iterator<Item = &'a String>) -> Result<(), TrainError> {
    let mut found = HashSet::new();
    let problem = names.find_map(|name| match name.as_str() {
        RESERVED => {
            Some(format!("a parameter of the model is called `{name}`, which checkpoints reserve: rename it"))
        }
        _ if found.insert(name) => None,
        _ => Some(format!(
            "two parameters of the model are called `{name}`: expected a different name for each"
        )),
    });
    problem.map_or(Ok(()), |problem| Err(TrainError::Setting(problem)))
}

type Described = (String, String);

fn describe(parameter: &Parameter) -> Described {
    let Parameter { name, shape, is_trained } = parameter;
    let trained = if *is_trained { "" } else { ", not trained" };
    (name.replace('\n', " "), format!("{shape:?} f32{trained}"))
}

/// Returns the differences between rank 0's model and this rank's, by name.
fn differences(theirs: &[Described], own: &[Described], rank: Rank) -> String {
    let find = |all: &[Described], name: &str| all.iter().find(|(other, _)| other == name).cloned();
    let missing = theirs.iter().filter(|(name, _)| find(own, name).is_none());
    let missing = missing.map(|(name, rest)| format!("rank {rank} lacks {name} {rest}, which rank 0 has"));
    let others = own.iter().filter_map(|(name, rest)| match find(theirs, name) {
        None => Some(format!("rank {rank} has {name} {rest}, which rank 0 lacks")),
        Some((_, other)) if other != *rest => {
            Some(format!("{name} is {other} on rank 0, and {rest} on rank {rank}"))
        }
        Some(_) => None,
    });
    let mut differences: Vec<String> = missing.chain(others).collect();
    if differences.is_empty() {
        // The parameters are identical, but a name occurs twice or in another place.
        let pairs = theirs.iter().zip(own).find(|(theirs, own)| theirs != own);
        let place = pairs.map(|((theirs, _), (own, _))| {
            format!("where rank 0 has {theirs}, rank {rank} has {own}: the same parameters, in another order")
        });
        differences.push(place.unwrap_or_else(|| "a name occurs more than once".to_owned()));
    }
    let count = differences.len();
    listed(differences, count)
}

/// Joins the first texts. `count` is the number of all texts, of which the others are counted.
pub(super) fn listed(mut texts: Vec<String>, count: usize) -> String {
    texts.truncate(MOST_TOLD);
    let more = count - texts.len();
    texts.join("; ") + &if more > 0 { format!("; and {more} more") } else { String::new() }
}

/// Returns the hash of all values of a replica, buffers included: the hash that `replicas` returns.
pub fn hash_with_buffers(replica: &mut impl Replica) -> Result<u64, ReplicaError> {
    Ok(Values::of(replica)?.all)
}

/// The result of one pass over the values of a replica.
pub(super) struct Values {
    /// The hash of the values of each trained parameter, the same on all ranks; 0 for buffers.
    each: Vec<u64>,
    /// The hash of all values, buffers included, which may differ between ranks.
    all: u64,
    /// The first trained parameter that is not finite, or too large.
    exploded: Option<(usize, Exploded)>,
}

impl Values {
    pub(super) fn of(replica: &mut impl Replica) -> Result<Self, ReplicaError> {
        let (mut each, mut all) = (vec![0; replica.parameters().len()], Xxh3::new());
        let mut exploded = None;
        for (index, hash) in each.iter_mut().enumerate() {
            let is_trained = replica.parameters()[index].is_trained;
            replica.with_values(index, &mut |values| {
                all.update(bytemuck::cast_slice(values));
                if is_trained {
                    *hash = xxh3_64(bytemuck::cast_slice(values));
                    exploded = exploded.or(Exploded::check(values).err().map(|error| (index, error)));
                }
            })?;
        }
        Ok(Self { each, all: all.digest(), exploded })
    }

    /// Returns the hash of all trained values, which is the same on all ranks.
    pub(super) fn trained(&self) -> u64 {
        xxh3_64(bytemuck::cast_slice(&self.each))
    }
}

pub(super) fn hash_of(arrays: &[Tensor]) -> u64 {
    let mut hasher = Xxh3::new();
    arrays.iter().for_each(|array| hasher.update(bytemuck::cast_slice(&array.values)));
    hasher.digest()
}

/// Compares the trained values of all ranks' replicas after this many steps. Returns the hash of all values of this rank's replica, buffers included.
/// Called by all ranks.
///
/// # Errors
/// [`TrainError::ReplicasDiffer`] on every rank, which names the ranks in the minority and the first parameter that differs.
/// [`TrainError::NotFinite`] on every rank if a trained value is not finite, or too large.
pub(super) fn replicas(
    comm: &mut Communicator,
    replica: &mut impl Replica,
    step: u64,
) -> Result<u64, TrainError> {
    let found = Values::of(replica)?;
    let own = found.trained();
    let hashes = gather(comm, &own)?;
    let count = |hash: u64| hashes.iter().filter(|&&other| other == hash).count();
    let usual = hashes.iter().copied().max_by_key(|&hash| (count(hash), hash == hashes[0])).unwrap_or(own);
    let ranks: Vec<Rank> = (0..hashes.len()).filter(|&rank| hashes[rank] != usual).collect();
    if ranks.is_empty() {
        let Some((index, Exploded { largest: found })) = found.exploded else { return Ok(found.all) };
        let (parameter, rank) = (replica.parameters()[index].name.clone(), comm.rank());
        return Err(TrainError::NotFinite { of: "largest value", parameter, found, rank, step });
    }
    // The hashes of a rank in the majority, parameter by parameter.
    let root = hashes.iter().position(|&hash| hash == usual).unwrap_or(0);
    let mut each = found.each.clone();
    comm.broadcast(&mut each, root)?;
    let differs = found.each.iter().zip(&each).position(|(own, usual)| own != usual).unwrap_or(0);
    let places = gather(comm, &differs)?;
    let name = |&rank: &Rank| replica.parameters()[places[rank]].name.clone();
    let parameters = ranks.iter().map(name).collect();
    Err(TrainError::ReplicasDiffer { step, ranks, parameters })
}

/// Returns the ranks on which a condition holds. Called by all ranks.
pub(super) fn all_where(comm: &mut Communicator, is_so: bool) -> Result<Vec<Rank>, TrainError> {
    let found = gather(comm, &is_so)?;
    Ok((0..found.len()).filter(|&rank| found[rank]).collect())
}

/// Returns the lowest rank on which a condition holds. Called by all ranks.
pub fn lowest(comm: &mut Communicator, is_so: bool) -> Result<Option<Rank>, TrainError> {
    Ok(all_where(comm, is_so)?.first().copied())
}

/// Broadcasts a value of rank 0, as JSON. Called by all ranks.
pub fn broadcast<T: DeserializeOwned>(
    comm: &mut Communicator,
    own: &impl Serialize,
) -> Result<T, TrainError> {
    broadcast_from(comm, own, 0)
}

pub(super) fn broadcast_from<T: DeserializeOwned>(
    comm: &mut Communicator,
    own: &impl Serialize,
    root: Rank,
) -> Result<T, TrainError> {
    let mut bytes = serde_json::to_vec(own).expect("what ranks tell each other is plain");
    let mut size = [bytes.len() as u64];
    comm.broadcast(&mut size, root)?;
    bytes.resize(size[0] as usize, 0);
    comm.broadcast(&mut bytes, root)?;
    Ok(serde_json::from_slice(&bytes).expect("a rank has just written it"))
}

/// Checks that an operation succeeded on all ranks, so that a rank that fails leaves no other waiting. Called by all ranks.
///
/// # Errors
/// The error of this rank if it is the lowest that failed. [`TrainError::Elsewhere`] if another rank is. Errors of the collectives.
pub fn agree<T>(comm: &mut Communicator, result: Result<T, TrainError>) -> Result<T, TrainError> {
    match lowest(comm, result.is_err())? {
        Some(rank) if rank != comm.rank() => Err(TrainError::Elsewhere { rank }),
        _ => result,
    }
}
