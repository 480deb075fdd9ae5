//! Buckets whose gradients are compressed between nodes. Residuals and encoder states are saved per parameter, so a run can restore them with other
//! buckets and another number of nodes. Gradients and parameters that are not finite are reported by name.

use super::{Bucket, BucketSettings, Buckets, Ledger, Plan, Wire};
use crate::checkpoint::{Tensor, moment_name, numbered, saved_moment};
use crate::optimizer::Exploded;
use crate::{Fill, TrainError};
use unisono::{Communicator, Error};
use unisono_compress::{Compressor, Levels};

/// The prefix of the name of a residual of a parameter's gradient. The node's number follows.
const RESIDUAL: &str = "residual of node ";
const ENCODER_STATE: &str = "encoding";

/// Returns a compressor for each bucket, if the wire format has one. All ranks call it.
pub(super) fn compressors(
    comm: &mut Communicator,
    ledger: &Ledger,
    settings: &BucketSettings,
) -> Result<Vec<Option<Compressor>>, Error> {
    let Wire::Compressed(compression) = settings.wire else {
        return Ok(vec![None; ledger.plan.counts.len()]);
    };
    let levels = Levels::of(comm)?;
    let of_bucket = |(bucket, members): (usize, &Vec<usize>)| {
        let shapes = members.iter().flat_map(|&index| {
            let parameter = &ledger.parameters[index];
            [parameter.shape.clone(), vec![Plan::padding(parameter.count())]]
        });
        let shapes: Vec<_> = shapes.collect();
        let shapes: Vec<_> = shapes.iter().map(Vec::as_slice).collect();
        let padding = members.iter().map(|&index| {
            let end = ledger.place(index).range.end;
            end..end + Plan::padding(ledger.parameters[index].count())
        });
        let compressor = Compressor::new(&levels, compression, &shapes).with_padding(padding.collect());
        // Every bucket has its own random numbers.
        Some(compressor.with_seed(settings.seed ^ (bucket as u64) << 32))
    };
    Ok(ledger.plan.members.iter().enumerate().map(of_bucket).collect())
}

impl Buckets {
    /// Returns whether gradients are compressed and leave residuals. The result is the same on all ranks.
    pub(crate) fn keeps_residuals(&self, comm: &Communicator) -> bool {
        self.compressors().next().is_some() && comm.topology().nodes() > 1
    }

    /// Returns the residuals of this rank, if it leads a node, and on rank 0 the encoder states.
    pub(crate) fn unsent(&self, comm: &Communicator) -> Vec<Tensor> {
        let (mut unsent, rank) = (Vec::new(), comm.rank());
        let Some(node) = comm.topology().leaders().position(rank) else { return unsent };
        for (bucket, compressor) in self.compressors() {
            let places = self.ledger.plan.members[bucket]
                .iter()
                .map(|&index| (&self.ledger.parameters[index].name, self.ledger.place(index).range.clone()));
            if rank == 0 {
                // Between two parameters there is padding.
                let states = places.clone().zip(compressor.encoder_state().into_iter().step_by(2));
                unsent.extend(states.map(|((name, _), state)| saved_moment(name, ENCODER_STATE, state)));
            }
            let (residual, what) = (compressor.residual(), format!("{RESIDUAL}{node}"));
            unsent.extend(places.map(|(name, range)| saved_moment(name, &what, residual[range].to_vec())));
        }
        unsent.retain(|tensor| !tensor.values.is_empty());
        unsent
    }

    /// Adds the sums of a step without an update, which contain residuals, to the residual of rank 0.
    pub(crate) fn keep_residuals(&mut self) -> Result<(), Error> {
        for bucket in 0..self.buckets.len() {
            self.complete(bucket)?;
            let Bucket { gradients, compressor, .. } = &self.buckets[bucket];
            if let Some(compressor) = compressor.as_ref().filter(|_| self.rank == 0) {
                compressor.keep(gradients.values());
            }
        }
        Ok(())
    }

    /// Returns a predicate for the names of saved arrays that this rank restores. If the number of nodes has changed, the nodes share the residuals.
    pub(crate) fn restores(&self, comm: &Communicator) -> impl Fn(&str) -> bool + use<> {
        let (nodes, own) = (comm.topology().nodes(), comm.topology().leaders().position(comm.rank()));
        move |name| numbered(name, RESIDUAL).is_none_or(|node| own == Some(node % nodes))
    }

    /// Restores the residuals, if this rank leads a node, from the arrays that it [restores](Buckets::restores). The sum of the residuals of all
    /// nodes is preserved.
    pub(crate) fn restore_unsent(&self, comm: &Communicator, saved: &[Tensor]) {
        if comm.topology().leaders().position(comm.rank()).is_none() {
            return;
        }
        for (bucket, compressor) in self.compressors() {
            let (members, mut states) = (&self.ledger.plan.members[bucket], compressor.encoder_state());
            let mut share = vec![0.0; self.ledger.plan.counts[bucket]];
            let name = |index: usize| &self.ledger.parameters[index].name;
            for (&index, state) in members.iter().zip(states.iter_mut().step_by(2)) {
                let name = moment_name(name(index), ENCODER_STATE);
                // The state of an encoder of another rank is of no use.
                let is_of_use = |found: &&Tensor| found.name == name && found.values.len() == state.len();
                if let Some(found) = saved.iter().find(is_of_use) {
                    state.copy_from_slice(&found.values);
                }
            }
            for &index in members {
                let name = moment_name(name(index), RESIDUAL);
                let node = |found: &Tensor| found.name.strip_prefix(&name)?.parse::<usize>().ok();
                let mut residuals: Vec<_> =
                    saved.iter().filter_map(|found| Some((node(found)?, &found.values))).collect();
                residuals.sort_by_key(|&(node, _)| node);
                for (_, residual) in residuals {
                    Fill::Add.write(&mut share[self.ledger.place(index).range.clone()], residual);
                }
            }
            compressor.restore(&share, &states);
        }
    }

    /// Records the first gradient of a bucket that is not finite, after its compressor has detected one.
    pub(super) fn find_not_finite(&mut self, bucket: usize) {
        let values = self.buckets[bucket].gradients.values();
        let wrong = |&index: &usize| {
            let range = self.ledger.place(index).range.clone();
            let found = values[range].iter().find(|value| !value.is_finite())?;
            Some((index, *found))
        };
        let members = &self.ledger.plan.members[bucket];
        // A residual may contain a value that is not finite although the result does not.
        let residual = members.first().map(|&index| (index, f32::NAN));
        self.not_finite = self.not_finite.or_else(|| members.iter().find_map(wrong).or(residual));
    }

    /// Checks the gradients of this step, which is the optimizer's `step`, in the completed buckets that were compressed. Compressors check gradients
    /// because a value that is not finite would stay in their residuals.
    pub(crate) fn check_finite(&self, step: u64) -> Result<(), TrainError> {
        let Some((index, found)) = self.not_finite else { return Ok(()) };
        Err(self.ledger.not_finite("gradient", index, found, (self.rank, step)))
    }

    /// Returns the error for a parameter that an update on this rank has made too large or not finite.
    pub(crate) fn exploded(&self, index: usize, Exploded { largest }: Exploded, step: u64) -> TrainError {
        self.ledger.not_finite("largest value", index, largest, (self.rank, step))
    }

    fn compressors(&self) -> impl Iterator<Item = (usize, &Compressor)> {
        self.buckets
            .iter()
            .enumerate()
            .filter_map(|(number, bucket)| Some((number, bucket.compressor.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrays::{gather, scatter};
    use crate::buckets::{BucketBytes, Pass};
    use crate::gradients::{Gradients as _, LossSums, Parameter};
    use unisono::{Topology, Unisono};

    fn on_nodes<R: Send>(nodes: &[usize], main: impl Fn(&mut Communicator, Buckets) -> R + Sync) -> Vec<R> {
        let world = Unisono::builder().nodes(Topology::from_node_sizes(nodes));
        let ended = world.on_threads(nodes.iter().sum(), |mut comm| {
            let parameters = [Parameter::new("weight", [16, 24]), Parameter::new("bias", [5])];
            let wire = "powersgd:1".parse().unwrap();
            let settings =
                BucketSettings { wire, bucket_bytes: BucketBytes::Fixed(64), ..BucketSettings::default() };
            let buckets = Buckets::new(&mut comm, &parameters, &settings).unwrap();
            main(&mut comm, buckets)
        });
        ended.unwrap()
    }

    /// Values are halves and quarters, so that sums are exact.
    fn unsent(nodes: usize) -> Vec<Tensor> {
        let of_node =
            |node: usize, count: usize| (0..count).map(|at| (at * (node + 1)) as f32 / 4.0).collect();
        let state = saved_moment("weight", "encoding", of_node(7, 24));
        let residuals = (0..nodes).flat_map(|node| {
            [("weight", 16 * 24), ("bias", 5)].map(|(name, count)| {
                saved_moment(name, &format!("residual of node {node}"), of_node(node, count))
            })
        });
        residuals.chain([state]).collect()
    }

    #[test]
    fn restored_residuals_have_the_same_sum_on_any_number_of_nodes() {
        let residuals = |unsent: &[Tensor], name: &str| -> Vec<Vec<f32>> {
            let of_name = format!("{name}:residual of node ");
            let of_parameter = unsent.iter().filter(|found| found.name.starts_with(&of_name));
            of_parameter.map(|found| found.values.clone()).collect()
        };
        let sum = |residuals: Vec<Vec<f32>>| -> Vec<f32> {
            (0..residuals[0].len()).map(|at| residuals.iter().map(|of_node| of_node[at]).sum()).collect()
        };
        let sorted = |mut unsent: Vec<Tensor>| {
            unsent.sort_by(|one, other| one.name.cmp(&other.name));
            unsent
        };
        let encoding =
            |unsent: &[Tensor]| unsent.iter().find(|found| found.name == "weight:encoding").cloned().unwrap();
        for (nodes_saved, nodes) in [(2, &[1, 1][..]), (2, &[1, 2, 1]), (3, &[2, 2]), (1, &[1, 1])] {
            let saved = sorted(unsent(nodes_saved));
            let mut ended = on_nodes(nodes, |comm, buckets| {
                let own = if comm.rank() == 0 { saved.clone() } else { Vec::new() };
                let restores = buckets.restores(comm);
                let (restored, unwanted) = scatter(comm, own, restores).unwrap();
                assert!(unwanted.is_empty(), "{unwanted:?}");
                buckets.restore_unsent(comm, &restored);
                let unsent = buckets.unsent(comm).into_iter().map(|tensor| (0, tensor)).collect();
                gather(comm, unsent).unwrap()
            });
            assert!(ended[1..].iter().all(Vec::is_empty), "rank 0 alone has it");
            let found = sorted(ended.swap_remove(0));
            assert_eq!(encoding(&found), encoding(&saved), "the state of the encoder");
            for name in ["weight", "bias"] {
                assert_eq!(residuals(&found, name).len(), nodes.len(), "{nodes:?}");
                assert_eq!(sum(residuals(&found, name)), sum(residuals(&saved, name)), "{nodes:?}");
            }
            if nodes_saved == nodes.len() {
                assert_eq!(found, saved, "every node has its own");
            }
        }
    }

    #[test]
    fn single_rank_adds_the_residuals_of_all_nodes() {
        let saved = unsent(2);
        let found = on_nodes(&[1], |comm, mut buckets| {
            buckets.restore_unsent(comm, &saved);
            let mut filling = buckets.fill(comm, Pass::ONLY);
            filling.record_loss(LossSums { targets: 1.0, ..LossSums::default() });
            filling.end().unwrap();
            buckets.gradient(1).unwrap().to_vec()
        });
        assert_eq!(found, [[0.0, 0.75, 1.5, 2.25, 3.0]]);
    }
}
