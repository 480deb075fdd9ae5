//! Buckets whose gradients are compressed between nodes. What their compressors have not sent yet, and the state of their encoders, is
//! known by parameters: so it can be saved, and restored with other buckets and another number of nodes.

use std::collections::HashMap;

use super::{BucketSettings, Buckets, Ledger, Plan, Wire};
use unisono::{Communicator, Error, Rank};
use unisono_compress::{Compressor, Levels};

/// What compressors have not sent yet, on rank 0.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Unsent {
    /// For each node, by the index of the parameter.
    pub(crate) residuals: Vec<HashMap<usize, Vec<f32>>>,
    /// The states of encoders, by the index of the parameter.
    pub(crate) states: HashMap<usize, Vec<f32>>,
}

/// A compressor for each bucket, if the wire format has one. All ranks call it.
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
    /// Gathers on rank 0 what the leaders of the nodes have not sent yet; nothing where nothing is compressed. All ranks call it.
    pub(crate) fn unsent(&self, comm: &mut Communicator) -> Result<Unsent, Error> {
        let mut unsent = Unsent::default();
        let leaders = leaders(comm);
        if leaders.len() == 1 || self.compressors().next().is_none() {
            return Ok(unsent);
        }
        let rank = comm.rank();
        unsent.residuals.resize_with(if rank == 0 { leaders.len() } else { 0 }, HashMap::new);
        for (bucket, compressor) in self.compressors() {
            let own = compressor.residual();
            if rank == 0 {
                let states = compressor.encoder_state();
                // Between two parameters there is padding.
                let of_parameters =
                    self.ledger.plan.members[bucket].iter().zip(states.into_iter().step_by(2));
                unsent.states.extend(of_parameters.map(|(&index, state)| (index, state)));
            } else if leaders.contains(&rank) {
                comm.send(&own, 0)?;
            }
            for (&leader, residuals) in leaders.iter().zip(&mut unsent.residuals) {
                let mut theirs = own.clone();
                if leader != 0 {
                    comm.receive(&mut theirs, leader)?;
                }
                for &index in &self.ledger.plan.members[bucket] {
                    let range = self.ledger.place(index).range.clone();
                    residuals.insert(index, theirs[range].to_vec());
                }
            }
        }
        Ok(unsent)
    }

    /// Restores what rank 0 has; what other ranks pass is not read. At another number of nodes, the nodes share the residuals, whose
    /// sum stays the same. All ranks call it.
    pub(crate) fn restore_unsent(&self, comm: &mut Communicator, unsent: Unsent) -> Result<(), Error> {
        let leaders = leaders(comm);
        let rank = comm.rank();
        for (bucket, compressor) in self.compressors() {
            let members = &self.ledger.plan.members[bucket];
            let mut states = compressor.encoder_state();
            for (&index, state) in members.iter().zip(states.iter_mut().step_by(2)) {
                // The state of an encoder of another rank is of no use.
                if let Some(saved) = unsent.states.get(&index).filter(|saved| saved.len() == state.len()) {
                    state.copy_from_slice(saved);
                }
                comm.broadcast(state, 0)?;
            }
            for (node, &leader) in leaders.iter().enumerate() {
                let of_node = unsent.residuals.iter().skip(node).step_by(leaders.len());
                let mut share = self.summed(bucket, of_node);
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

    /// The sum of residuals, laid out as the bucket is.
    fn summed<'a>(
        &self,
        bucket: usize,
        residuals: impl Iterator<Item = &'a HashMap<usize, Vec<f32>>>,
    ) -> Vec<f32> {
        let mut sums = vec![0.0; self.ledger.plan.counts[bucket]];
        for residuals in residuals {
            for &index in &self.ledger.plan.members[bucket] {
                let range = self.ledger.place(index).range.clone();
                let saved = residuals.get(&index).into_iter().flatten();
                sums[range].iter_mut().zip(saved).for_each(|(sum, saved)| *sum += saved);
            }
        }
        sums
    }

    fn compressors(&self) -> impl Iterator<Item = (usize, &Compressor)> {
        self.buckets
            .iter()
            .enumerate()
            .filter_map(|(number, bucket)| Some((number, bucket.compressor.as_ref()?)))
    }
}

/// The first rank of each node.
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
    fn unsent(nodes: usize) -> Unsent {
        let of_node =
            |node: usize, count: usize| (0..count).map(|at| (at * (node + 1)) as f32 / 4.0).collect();
        let residuals =
            (0..nodes).map(|node| HashMap::from([(0, of_node(node, 16 * 24)), (1, of_node(node, 5))]));
        let states = HashMap::from([(0, of_node(7, 24)), (1, Vec::new())]);
        Unsent { residuals: residuals.collect(), states }
    }

    #[test]
    fn what_is_restored_has_the_same_sum_on_any_number_of_nodes() {
        let sum = |residuals: &[HashMap<usize, Vec<f32>>], index: usize| {
            let count = residuals[0][&index].len();
            (0..count)
                .map(|at| residuals.iter().map(|of_node| of_node[&index][at]).sum::<f32>())
                .collect::<Vec<_>>()
        };
        for (saved, nodes) in [(2, &[1, 1][..]), (2, &[1, 2, 1]), (3, &[2, 2]), (1, &[1, 1])] {
            let saved = unsent(saved);
            let ended = on_nodes(nodes, |comm, buckets| {
                let own = if comm.rank() == 0 { saved.clone() } else { Unsent::default() };
                buckets.restore_unsent(comm, own).unwrap();
                buckets.unsent(comm).unwrap()
            });
            assert!(ended[1..].iter().all(|others| *others == Unsent::default()), "rank 0 alone has it");
            let found = &ended[0];
            assert_eq!((found.residuals.len(), &found.states), (nodes.len(), &saved.states), "{nodes:?}");
            for index in [0, 1] {
                assert_eq!(sum(&found.residuals, index), sum(&saved.residuals, index), "{nodes:?}");
            }
            if saved.residuals.len() == nodes.len() {
                assert_eq!(*found, saved, "every node has its own");
            }
        }
    }
}
