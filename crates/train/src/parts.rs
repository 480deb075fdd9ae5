//! A model whose parts are on several ranks, and what they know of it together.

use unisono::{Rank, ReduceOp};

use crate::checkpoint::Tensor;
use crate::compare;
use crate::error::TrainError;
use crate::replica::Parts;

/// The stage, the name and the shape of an array.
type Described = (usize, String, Vec<usize>);

impl Parts<'_> {
    /// Returns the sum of a number over all parts. Called by all their ranks.
    pub(crate) fn sum(&mut self, own: f64) -> Result<f64, TrainError> {
        let mut sum = [own];
        self.comm.all_reduce(&mut sum, ReduceOp::Sum)?;
        Ok(sum[0])
    }

    /// Returns the parameters of all parts on rank 0, in the order of the model, from those of each, in their order. Called by
    /// all their ranks; empty on the others.
    pub(crate) fn gather_parameters(&mut self, own: Vec<Tensor>) -> Result<Vec<Tensor>, TrainError> {
        let (first, rank, ranks) = (self.first, self.comm.rank(), self.comm.ranks());
        let stage = |index| (first.partition_point(|&first| first <= index) - 1) * ranks + rank;
        self.gather(own.into_iter().enumerate().map(|(index, tensor)| (stage(index), tensor)).collect())
    }

    /// Returns the arrays of all parts on rank 0, sorted by the stage that each is given with. Called by all their ranks; empty on the
    /// others.
    pub(crate) fn gather(&mut self, own: Vec<(usize, Tensor)>) -> Result<Vec<Tensor>, TrainError> {
        let (rank, ranks) = (self.comm.rank(), self.comm.ranks());
        let mut all = Vec::new();
        for root in 1..ranks {
            let described = own.iter().map(|(stage, tensor)| (stage, &tensor.name, &tensor.shape));
            let described = described.collect::<Vec<_>>();
            let described: Vec<Described> = compare::broadcast_from(self.comm, &described, root)?;
            if rank == root {
                own.iter().try_for_each(|(_, tensor)| self.comm.send(&tensor.values, 0))?;
            } else if rank == 0 {
                for (stage, name, shape) in described {
                    let mut values = vec![0.0; shape.iter().product()];
                    self.comm.receive(&mut values, root)?;
                    all.push((stage, Tensor { name, shape, values }));
                }
            }
        }
        if rank > 0 {
            return Ok(Vec::new());
        }
        all.extend(own);
        all.sort_by_key(|&(stage, _)| stage);
        Ok(all.into_iter().map(|(_, tensor)| tensor).collect())
    }

    /// Sends to this rank the arrays of rank 0 that it wants, and returns the names of those that no rank wants. Called by all
    /// ranks of the parts.
    pub(crate) fn scatter(
        &mut self,
        arrays: Vec<Tensor>,
        wants: impl Fn(&str) -> bool,
    ) -> Result<(Vec<Tensor>, Vec<String>), TrainError> {
        const OWNER: Rank = 0;
        let described: Vec<_> = arrays.iter().map(|tensor| (&tensor.name, &tensor.shape)).collect();
        let described: Vec<(String, Vec<usize>)> = compare::broadcast_from(self.comm, &described, OWNER)?;
        let mut wanted: Vec<u64> = described.iter().map(|(name, _)| u64::from(wants(name))).collect();
        self.comm.all_reduce(&mut wanted, ReduceOp::Sum)?;
        let (mut arrays, mut kept, mut unwanted) = (arrays.into_iter(), Vec::new(), Vec::new());
        for ((name, shape), wanted) in described.into_iter().zip(wanted) {
            let count = shape.iter().product();
            let mut values = arrays.next().map_or_else(|| vec![0.0; count], |tensor| tensor.values);
            match wanted {
                0 => unwanted.push(name),
                _ => {
                    self.comm.broadcast(&mut values, OWNER)?;
                    if wants(&name) {
                        kept.push(Tensor { name, shape, values });
                    }
                }
            }
        }
        Ok((kept, unwanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, values: &[f32]) -> Tensor {
        Tensor { name: name.to_owned(), shape: vec![values.len()], values: values.to_vec() }
    }

    #[test]
    fn parts_come_together_in_the_order_of_the_model_and_go_back_to_who_wants_them() {
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
            let back = parts.scatter(given, |name| own.iter().any(|own| own.name == name))?;
            Ok((names, back == (own.to_vec(), vec!["nobody's".to_owned()]), parts.sum(rank as f64 + 1.0)?))
        });
        let ended: Vec<_> = ended.into_iter().collect::<Result<_, _>>().unwrap();
        assert_eq!(ended, [("abcdef".to_owned(), true, 3.0), (String::new(), true, 3.0)]);
    }
}
