//! Estimates the memory of a run, and compares it with the available memory before allocating. Otherwise the kernel would kill a process, perhaps an
//! unrelated one.

use super::Config;
use super::check::refuse;
use crate::model::{self, Size};
use unisono::Communicator;
use unisono::internals::{AvailableMemory, NodeFacts, host};
use unisono::size::approximate;
use unisono_data::{Dataset, Options, Source};
use unisono_strategies::Strategy;
use unisono_train::internals::EVALUATION_BATCH;
use unisono_train::{Outer, Shares, TrainError, Wire, agree};

const NUMBER: f64 = size_of::<f32>() as f64;

/// The estimated memory of a rank, in bytes; small items are ignored.
///
/// Floating-point, so that an absurd size does not overflow.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MemoryEstimate {
    /// The part of the data set that is kept in memory.
    pub data: f64,
    /// The model's parameters.
    pub parameters: f64,
    /// The gradient buckets, and the partial sums of a reduction tree.
    pub gradients: f64,
    /// The optimizer state.
    pub optimizer: f64,
    /// Prefetched batches, and the activations for the backward pass.
    pub batches: f64,
    /// Rank 0's copy for checkpoints.
    pub checkpoint: f64,
}

impl MemoryEstimate {
    /// Returns the estimate for training a model of this size, with this number of samples per pass, number of arrays of optimizer state, and wire
    /// format.
    pub fn of(size: &Size, samples: usize, state_arrays: usize, wire: Wire) -> Self {
        let parameters = NUMBER * size.parameters;
        let narrow = match wire {
            Wire::F32 => 0.0,
            Wire::Bf16 | Wire::F16 => 0.5,
            // The residual.
            Wire::Compressed(_) => 1.0,
        };
        Self {
            parameters,
            gradients: (1.0 + narrow) * parameters,
            optimizer: state_arrays as f64 * parameters,
            batches: NUMBER * samples as f64 * (size.inputs + size.with_backward * size.activations),
            ..Self::default()
        }
    }

    /// Rejects a run whose ranks need more memory than this node has. Called by all ranks.
    ///
    /// # Errors
    /// [`TrainError::Setting`] on the lowest rank of a node without enough memory, [`TrainError::Elsewhere`] on the others.
    pub fn check(&self, comm: &mut Communicator) -> Result<(), TrainError> {
        let ranks = NodeFacts::of(comm).local_ranks;
        let topology = comm.topology();
        let has_first = topology.node_of(comm.rank()) == topology.node_of(0);
        let refused = match AvailableMemory::shortage(self.of_node(ranks, has_first) as u64) {
            Some(there_is) => refuse(self.refusal(ranks, has_first, &there_is)),
            None => Ok(()),
        };
        agree(comm, refused)
    }

    fn of_node(&self, ranks: usize, has_first: bool) -> f64 {
        let Self { data, parameters, gradients, optimizer, batches, checkpoint } = self;
        let once = if has_first { *checkpoint } else { 0.0 };
        ranks as f64 * (data + parameters + gradients + optimizer + batches) + once
    }

    fn refusal(&self, ranks: usize, has_first: bool, there_is: &str) -> String {
        let text = |bytes: f64| approximate(bytes as u64);
        let parts = [
            ("data", self.data),
            ("parameters", self.parameters),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("batches", self.batches),
            ("checkpoint", if has_first { self.checkpoint } else { 0.0 }),
        ];
        let named = parts.iter().filter(|(_, bytes)| *bytes > 0.0);
        let named = named.map(|(name, bytes)| format!("{name} {}", text(*bytes)));
        format!(
            "the {ranks} rank(s) on {} need about {} of memory (each: {}), but only {there_is}: choose a smaller model or batch, or \
             fewer ranks on a node",
            host(),
            text(self.of_node(ranks, has_first)),
            named.collect::<Vec<_>>().join(", ")
        )
    }
}

impl Config {
    /// Estimates the memory of the data set from the size of its files, before it is read. Data beyond the limit are in files.
    pub(super) fn needs_of_data(&self) -> MemoryEstimate {
        let files = self.data.size_bytes() as f64;
        let limit = Options::default().in_memory_bytes as f64;
        let data = match &self.data {
            Source::Digits => 22_000.0 * 785.0,
            // Two files, each up to the limit.
            Source::Idx(_) => files.min(2.0 * limit),
            Source::Cifar(_) => files,
            // Characters, up to the limit, which a vector that grows copies.
            Source::Text(_) => (files * NUMBER).min(2.0 * limit),
            // Values, likewise. A value has at least two characters (or bytes). Labels are added.
            Source::Csv(_) | Source::Parquet(_) | Source::Arrow(_) => {
                (files * NUMBER).min(2.0 * limit + files / 4.0)
            }
            // Samples stay in their files, or on other machines.
            Source::TfRecord(_)
            | Source::WebDataset(_)
            | Source::Npy(_)
            | Source::Images(_)
            | Source::Service(_) => 0.0,
        };
        MemoryEstimate { data, ..MemoryEstimate::default() }
    }

    /// Returns the estimate without the data set, once that is loaded. It is zero for a model that does not fit the data.
    pub(super) fn needs(
        &self,
        strategy: Strategy,
        ranks: usize,
        shares: Shares,
        dataset: &Dataset,
    ) -> MemoryEstimate {
        let Shares { ranks: computing, global_batch, .. } = shares;
        let Ok(size) = model::size(self.model, self.hidden.as_deref(), &dataset.kind) else {
            return MemoryEstimate::default();
        };
        // The largest number of samples of a pass.
        let pass = match self.world_invariant() {
            Some(parts) => global_batch.div_ceil(parts),
            None => self.batch_size.min(global_batch.div_ceil(computing)),
        };
        let (pass, parts) = match strategy {
            Strategy::Pipeline => {
                let length = self.pipeline_length(ranks);
                let passes = shares.fixed_passes.unwrap_or(1) / shares.ranks;
                // The first rank keeps the activations of most passes, each of a part of the model.
                let kept = self.pipeline_schedule.most_kept(0, length, passes) * shares.micro_batch;
                (kept.div_ceil(length * self.pipeline_schedule.stages_per_rank()), length)
            }
            Strategy::CentralStorage => (pass, ranks),
            _ => (pass, 1),
        };
        let depth = match self.prefetch {
            None => 2,
            Some(depth) => depth.min(dataset.train.len().div_ceil(global_batch)),
        };
        let ready = depth as f64 * global_batch.div_ceil(computing) as f64 * size.inputs;
        let measured = EVALUATION_BATCH.min(dataset.test.len()) as f64;
        let mut needs =
            MemoryEstimate::of(&size, pass, self.optimizer().rule.state_names().len(), self.wires()[0]);
        // Partial sums that wait for their counterpart in a tree over the shards of a rank.
        let waiting = self.world_invariant().map_or(0, |shards| (shards / computing).max(1).ilog2());
        needs.gradients += f64::from(waiting) * needs.parameters;
        needs.batches = NUMBER * ready + needs.batches.max(NUMBER * measured * size.activations);
        if self.checkpoint_dir.is_some() {
            // With local steps, rank 0 gathers a different state from every rank.
            let states = if self.local_steps.is_some() { computing } else { 1 };
            needs.checkpoint = needs.parameters + states as f64 * needs.optimizer;
        }
        if self.local_steps.is_some() && self.outer != Outer::Average {
            // The values at the start of a round, and the velocity.
            needs.optimizer += 2.0 * needs.parameters;
        }
        if self.shard_optimizer {
            needs.optimizer /= computing as f64;
        }
        for part in [&mut needs.parameters, &mut needs.gradients, &mut needs.optimizer] {
            *part /= parts as f64;
        }
        needs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unisono::{Topology, Unisono};

    #[test]
    fn estimate_counts_all_ranks_of_a_node_and_one_checkpoint_copy() {
        let needs =
            MemoryEstimate { parameters: 3.0, gradients: 4.0, checkpoint: 5.0, ..MemoryEstimate::default() };
        assert_eq!((needs.of_node(4, false), needs.of_node(4, true)), (28.0, 33.0));
    }

    #[test]
    fn checkpoint_of_local_steps_has_the_optimizer_state_of_every_rank() {
        let options = Options { train_samples: 100, test_samples: 10, ..Options::default() };
        let dataset = unisono_data::load(&Source::Digits, &options).unwrap();
        let needs = |local_steps| {
            let own = Config { local_steps, checkpoint_dir: Some("runs".into()), ..Config::default() };
            let shares = own.shares(Strategy::Mirrored, (0, 4), 64);
            own.needs(Strategy::Mirrored, 4, shares, &dataset)
        };
        let (usual, local) = (needs(None), needs(Some(8)));
        assert!(usual.optimizer > 0.0);
        assert_eq!(local.checkpoint, usual.checkpoint + 3.0 * usual.optimizer);
    }

    #[test]
    fn run_that_exceeds_memory_is_refused_on_all_ranks_in_one_line() {
        let needs = MemoryEstimate { parameters: 1e18, batches: f64::INFINITY, ..MemoryEstimate::default() };
        let refused = unisono::threads(3, |mut comm| needs.check(&mut comm).unwrap_err());
        let message = refused[0].to_string();
        for said in [
            "the 3 rank(s) on ",
            "parameters 909494 TiB",
            "batches ",
            " of memory is available",
            "fewer ranks",
        ] {
            assert!(message.contains(said), "no {said} in {message}");
        }
        assert!(!message.contains('\n'), "{message}");
        assert!(refused[1..].iter().all(|error| matches!(error, TrainError::Elsewhere { rank: 0 })));
        let enough = MemoryEstimate { parameters: 1e3, ..MemoryEstimate::default() };
        unisono::threads(3, |mut comm| enough.check(&mut comm).unwrap());
        // Declared nodes have no memory of their own.
        let declared = Unisono::builder().nodes(Topology::from_node_sizes(&[1, 1]));
        let refused = declared.on_threads(2, |mut comm| needs.check(&mut comm).unwrap_err()).unwrap();
        assert!(refused[0].to_string().contains("the 2 rank(s) on "), "{}", refused[0]);
    }
}
