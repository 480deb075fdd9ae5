//! Named arrays that are distributed over ranks: gathered on rank 0 for saving, and scattered to the ranks that need them.

use std::collections::HashMap;

use unisono::{Communicator, Rank, ReduceOp, internals};

use crate::checkpoint::Tensor;
use crate::compare;
use crate::{Parts, TrainError};

/// The rank that saves checkpoints.
pub(crate) const SAVES: Rank = 0;

/// Returns the arrays of all ranks on rank 0, sorted by key, then by rank. Returns nothing on other ranks. Called by all ranks.
pub(crate) fn gather(comm: &mut Communicator, own: Vec<(usize, Tensor)>) -> Result<Vec<Tensor>, TrainError> {
    let describe = |(key, tensor): &(usize, Tensor)| (*key, tensor.name.clone(), tensor.shape.clone());
    let described = internals::gather(comm, &own.iter().map(describe).collect::<Vec<_>>())?;
    if comm.rank() != SAVES {
        let values: Vec<_> = own.iter().map(|(_, tensor)| &tensor.values[..]).collect();
        comm.send(&values.concat(), SAVES)?;
        return Ok(Vec::new());
    }
    let mut all = own;
    for (rank, described) in described.into_iter().enumerate().skip(1) {
        let counts = described.iter().map(|(.., shape)| shape.iter().product::<usize>());
        let mut values = vec![0.0; counts.sum()];
        comm.receive(&mut values, rank)?;
        let mut rest = &values[..];
        for (key, name, shape) in described {
            let values = rest.split_off(..shape.iter().product()).expect("it has all of them").to_vec();
            all.push((key, Tensor { name, shape, values }));
        }
    }
    all.sort_by_key(|&(key, _)| key);
    Ok(all.into_iter().map(|(_, tensor)| tensor).collect())
}

/// Concatenates vectors of the same name, which are parts of one array, in their order.
pub(crate) fn join(parts: Vec<Tensor>) -> Vec<Tensor> {
    let (mut joined, mut places) = (Vec::<Tensor>::new(), HashMap::new());
    for tensor in parts {
        let place = *places.entry(tensor.name.clone()).or_insert(joined.len());
        match joined.get_mut(place) {
            None => joined.push(tensor),
            Some(Tensor { shape, values, .. }) => {
                values.extend(tensor.values);
                *shape = vec![values.len()];
            }
        }
    }
    joined
}

/// Returns the arrays of rank 0 that this rank wants, and the names of the arrays that no rank wants. Called by all ranks.
pub fn scatter(
    comm: &mut Communicator,
    arrays: Vec<Tensor>,
    wants: impl Fn(&str) -> bool,
) -> Result<(Vec<Tensor>, Vec<String>), TrainError> {
    let mut kept = Vec::new();
    let unwanted = scatter_each(comm, arrays, wants, |tensor| kept.push(tensor))?;
    Ok((kept, unwanted))
}

/// As [`scatter`], but calls `keep` with each array before the next one arrives. A rank that keeps a part of each never holds all of them.
pub(crate) fn scatter_each(
    comm: &mut Communicator,
    arrays: Vec<Tensor>,
    wants: impl Fn(&str) -> bool,
    mut keep: impl FnMut(Tensor),
) -> Result<Vec<String>, TrainError> {
    let rank = comm.rank();
    let described: Vec<_> = arrays.iter().map(|tensor| (&tensor.name, &tensor.shape)).collect();
    let described: Vec<(String, Vec<usize>)> = compare::broadcast(comm, &described)?;
    // The upper half of the sum is the number of ranks that want the array. If only one does, the lower half is that rank.
    let request = |name: &str| if wants(name) { (1 << 32) + rank as u64 } else { 0 };
    let mut requests: Vec<u64> = described.iter().map(|(name, _)| request(name)).collect();
    comm.all_reduce(&mut requests, ReduceOp::Sum)?;
    let (mut arrays, mut unwanted) = (arrays.into_iter(), Vec::new());
    for ((name, shape), requested) in described.into_iter().zip(requests) {
        let is_own = wants(&name);
        let count = if is_own { shape.iter().product() } else { 0 };
        let mut values = arrays.next().map_or_else(|| vec![0.0; count], |tensor| tensor.values);
        match (requested >> 32, requested as u32 as Rank) {
            (0, _) => unwanted.push(name.clone()),
            (1, SAVES) => {}
            (1, only) if rank == SAVES => comm.send(&values, only)?,
            (1, only) if rank == only => comm.receive(&mut values, SAVES)?,
            (1, _) => {}
            _ => {
                values.resize(shape.iter().product(), 0.0);
                comm.broadcast(&mut values, SAVES)?;
            }
        }
        if is_own {
            keep(Tensor { name, shape, values });
        }
    }
    Ok(unwanted)
}

impl Parts<'_> {
    /// Sums a number over all parts, in their order, so that replicas on other nodes have the same bits. Called by the ranks of all parts.
    pub(crate) fn sum(&mut self, own: f64) -> Result<f64, TrainError> {
        let mut all = vec![0.0; self.comm.ranks()];
        all[self.comm.rank()] = own;
        self.comm.all_reduce(&mut all, ReduceOp::Sum)?;
        Ok(all.into_iter().sum())
    }

    /// Returns the parameters of all parts on rank 0, in the order of the model. Each part passes its own, in their order. Returns nothing on other
    /// ranks. Called by the ranks of all parts.
    pub(crate) fn gather_parameters(&mut self, own: Vec<Tensor>) -> Result<Vec<Tensor>, TrainError> {
        let (first, rank, ranks) = (self.first, self.comm.rank(), self.comm.ranks());
        let stage = |index| (first.partition_point(|&first| first <= index) - 1) * ranks + rank;
        gather(self.comm, own.into_iter().enumerate().map(|(index, tensor)| (stage(index), tensor)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, values: &[f32]) -> Tensor {
        Tensor { name: name.to_owned(), shape: vec![values.len()], values: values.to_vec() }
    }

    #[test]
    fn sum_over_parts_has_the_same_bits_for_every_all_reduce() {
        let sums = unisono::threads(4, |mut comm| {
            let own = [1e16, 1.0, -1e16, 1.0][comm.rank()];
            unisono::Algorithm::ALL.map(|algorithm| {
                comm.set_choice(algorithm).unwrap();
                Parts { comm: &mut comm, first: &[0] }.sum(own).unwrap()
            })
        });
        assert!(sums.as_flattened().iter().all(|&sum| sum == 1.0), "{sums:?}");
    }

    #[test]
    fn gather_follows_the_model_order_and_scatter_returns_wanted_arrays() {
        let ended = unisono::threads(2, |mut comm| -> Result<_, TrainError> {
            let rank = comm.rank();
            // Stages 0 and 2 on rank 0, 1 and 3 on rank 1; the first of each rank has two parameters.
            let own = [["a", "b", "e"], ["c", "d", "f"]][rank].map(|name| tensor(name, &[rank as f32; 3]));
            let mut parts = Parts { comm: &mut comm, first: &[0, 2] };
            let whole = parts.gather_parameters(own.to_vec())?;
            let names: String = whole.iter().map(|tensor| tensor.name.as_str()).collect();
            let mut given = whole.clone();
            if rank == 0 {
                given.push(tensor("nobody's", &[]));
            }
            let back = scatter(parts.comm, given, |name| own.iter().any(|own| own.name == name))?;
            Ok((names, back == (own.to_vec(), vec!["nobody's".to_owned()]), parts.sum(rank as f64 + 1.0)?))
        });
        let ended: Vec<_> = ended.into_iter().collect::<Result<_, _>>().unwrap();
        assert_eq!(ended, [("abcdef".to_owned(), true, 3.0), (String::new(), true, 3.0)]);
    }
}
