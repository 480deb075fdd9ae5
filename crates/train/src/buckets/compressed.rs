//! Buckets whose gradients are compressed between nodes. What their compressors have not sent yet, and the state of their encoders, is
//! known by parameters: so it can be saved, and restored with other buckets and another number of nodes. Gradients and parameters that are
//! not finite are reported by name.

use super::{BucketSettings, Buckets, Ledger, Moment, Plan, Wire};
use crate::error::TrainError;
use crate::optimizer::Exploded;
use unisono::{Communicator, Error, Rank};
use unisono_compress::{Compressor, Levels};

/// The name of what a node has not sent of a parameter's gradient, before the node's number.
const RESIDUAL: &str = "residual of node ";
/// The name of the state of the encoder of a parameter's gradient.
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
            [parameter.shape.clone(), vec![Plan::padding(parameter)]]
        });
        let shapes: Vec<_> = shapes.collect();
        let shapes: Vec<_> = shapes.iter().map(Vec::as_slice).collect();
        let padding = members.iter().map(|&index| {
            let end = ledger.place(index).range.end;
            end..end + Plan::padding(&ledger.parameters[index])
        });
        let compressor = Compressor::new(&levels, compression, &shapes).with_padding(padding.collect());
        // Every bucket has random numbers of its own.
        Some(compressor.with_seed(settings.seed ^ (bucket as u64) << 32))
    };
    Ok(ledger.plan.members.iter().enumerate().map(of_bucket).collect())
}

impl Buckets {
    /// Gathers on rank 0 what the leaders of the nodes have not sent yet, and the states of encoders; nothing where nothing is compressed.
    /// All ranks call it.
    pub(crate) fn unsent(&self, comm: &mut Communicator) -> Result<Vec<Moment>, Error> {
        let mut unsent = Vec::new();
        let leaders = leaders(comm);
        if leaders.len() == 1 {
            return Ok(unsent);
        }
        let rank = comm.rank();
        for (bucket, compressor) in self.compressors() {
            let members = &self.ledger.plan.members[bucket];
            let own = compressor.residual();
            if rank != 0 {
                if leaders.contains(&rank) {
                    comm.send(&own, 0)?;
                }
                continue;
            }
            // Between two parameters there is padding.
            let states = members.iter().zip(compressor.encoder_state().into_iter().step_by(2));
            unsent.extend(states.map(|(&index, state)| (ENCODER_STATE.to_owned(), index, state)));
            for (node, &leader) in leaders.iter().enumerate() {
                let mut theirs = own.clone();
                if leader != 0 {
                    comm.receive(&mut theirs, leader)?;
                }
                unsent.extend(members.iter().map(|&index| {
                    let range = self.ledger.place(index).range.clone();
                    (format!("{RESIDUAL}{node}"), index, theirs[range].to_vec())
                }));
            }
        }
        unsent.retain(|(.., values)| !values.is_empty());
        Ok(unsent)
    }

    /// Restores what rank 0 has; what other ranks pass is not read. At another number of nodes, the nodes share the residuals, whose
    /// sum stays the same. All ranks call it.
    pub(crate) fn restore_unsent(&self, comm: &mut Communicator, unsent: &[Moment]) -> Result<(), Error> {
        let leaders = leaders(comm);
        let rank = comm.rank();
        let residuals = unsent.iter().filter_map(|(name, index, values)| {
            let node: usize = name.strip_prefix(RESIDUAL)?.parse().ok()?;
            Some((node, *index, values))
        });
        let mut residuals: Vec<_> = residuals.collect();
        residuals.sort_by_key(|&(node, ..)| node);
        for (bucket, compressor) in self.compressors() {
            let members = &self.ledger.plan.members[bucket];
            let mut states = compressor.encoder_state();
            for (&index, state) in members.iter().zip(states.iter_mut().step_by(2)) {
                let saved = unsent.iter().find(|(name, of, _)| name == ENCODER_STATE && *of == index);
                // The state of an encoder of another rank is of no use.
                if let Some((.., saved)) = saved.filter(|(.., saved)| saved.len() == state.len()) {
                    state.copy_from_slice(saved);
                }
                comm.broadcast(state, 0)?;
            }
            for (node, &leader) in leaders.iter().enumerate() {
                let mut share = vec![0.0; self.ledger.plan.counts[bucket]];
                for (_, index, saved) in residuals.iter().filter(|(of, ..)| of % leaders.len() == node) {
                    let place = self.ledger.place(*index);
                    if place.bucket == bucket {
                        let sums = share[place.range.clone()].iter_mut();
                        sums.zip(*saved).for_each(|(sum, saved)| *sum += saved);
                    }
                }
                match (rank == 0, rank == leader) {
                    (true, false) => comm.send(&share, leader)?,
                    (false, true) => comm.receive(&mut share, 0)?,
                    _ => {}
                }
                if rank == leader {
                    compressor.restore(&share, &states);
                }
            }
        }
        Ok(())
    }

    /// Notes the first gradient of a bucket that is not finite, after its compressor has found one.
    pub(super) fn find_not_finite(&mut self, bucket: usize) {
        let values = self.buckets[bucket].gradients.values();
        let wrong = |&index: &usize| {
            let range = self.ledger.place(index).range.clone();
            let found = values[range].iter().find(|value| !value.is_finite())?;
            Some((index, *found))
        };
        let members = &self.ledger.plan.members[bucket];
        // A residual may be spoiled though the result is not.
        let residual = members.first().map(|&index| (index, f32::NAN));
        self.not_finite = self.not_finite.or_else(|| members.iter().find_map(wrong).or(residual));
    }

    /// Checks the gradients of this step, which is the optimizer's `step`, in the buckets that have landed and were compressed:
    /// compressors look, since they would keep what is not finite.
    ///
    /// # Errors
    /// [`TrainError::NotFinite`] names the first parameter.
    pub(crate) fn check_finite(&self, step: u64) -> Result<(), TrainError> {
        self.not_finite.map_or(Ok(()), |(index, found)| Err(self.error_of("gradient", index, found, step)))
    }

    /// Returns the error for a parameter that an update has spoiled on this rank.
    #[doc(hidden)]
    pub fn exploded(&self, index: usize, Exploded { largest }: Exploded, step: u64) -> TrainError {
        self.error_of("largest value", index, largest, step)
    }

    fn error_of(&self, of: &'static str, index: usize, found: f32, step: u64) -> TrainError {
        let parameter = self.ledger.parameters[index].name.clone();
        TrainError::NotFinite { of, parameter, found, rank: self.rank, step }
    }

    fn compressors(&self) -> impl Iterator<Item = (usize, &Compressor)> {
        self.buckets
            .iter()
            .enumerate()
            .filter_map(|(number, bucket)| Some((number, bucket.compressor.as_ref()?)))
    }
}

/// Returns the first rank of each node.
fn leaders(comm: &Communicator) -> Vec<Rank> {
    let topology = comm.topology();
    (0..topology.ranks()).filter(|&rank| topology.local_rank(rank) == 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buckets::BucketBytes;
    use crate::gradients::Parameter;
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

    /// Halves and quarters, so that sums are exact.
    fn unsent(nodes: usize) -> Vec<Moment> {
        let of_node =
            |node: usize, count: usize| (0..count).map(|at| (at * (node + 1)) as f32 / 4.0).collect();
        let state = ("encoding".to_owned(), 0, of_node(7, 24));
        let residuals = (0..nodes).flat_map(|node| {
            [(0, 16 * 24), (1, 5)]
                .map(|(index, count)| (format!("residual of node {node}"), index, of_node(node, count)))
        });
        residuals.chain([state]).collect()
    }

    #[test]
    fn what_is_restored_has_the_same_sum_on_any_number_of_nodes() {
        let residuals = |unsent: &[Moment], index: usize| -> Vec<Vec<f32>> {
            let of_index = unsent.iter().filter(|(name, of, _)| name != "encoding" && *of == index);
            of_index.map(|(.., values)| values.clone()).collect()
        };
        let sum = |residuals: Vec<Vec<f32>>| -> Vec<f32> {
            (0..residuals[0].len()).map(|at| residuals.iter().map(|of_node| of_node[at]).sum()).collect()
        };
        let sorted = |mut unsent: Vec<Moment>| {
            unsent.sort_by(|(name, index, _), (other, other_index, _)| {
                (name, index).cmp(&(other, other_index))
            });
            unsent
        };
        for (nodes_saved, nodes) in [(2, &[1, 1][..]), (2, &[1, 2, 1]), (3, &[2, 2]), (1, &[1, 1])] {
            let saved = sorted(unsent(nodes_saved));
            let mut ended = on_nodes(nodes, |comm, buckets| {
                let own = if comm.rank() == 0 { &saved[..] } else { &[] };
                buckets.restore_unsent(comm, own).unwrap();
                buckets.unsent(comm).unwrap()
            });
            assert!(ended[1..].iter().all(Vec::is_empty), "rank 0 alone has it");
            let found = sorted(ended.swap_remove(0));
            assert_eq!(found[0], saved[0], "the state of the encoder");
            for index in [0, 1] {
                assert_eq!(residuals(&found, index).len(), nodes.len(), "{nodes:?}");
                assert_eq!(sum(residuals(&found, index)), sum(residuals(&saved, index)), "{nodes:?}");
            }
            if nodes_saved == nodes.len() {
                assert_eq!(found, saved, "every node has its own");
            }
        }
    }
}
