//! The memory that a run needs.

use super::Config;
use crate::model;
use crate::needs::{MemoryEstimate, NUMBER};
use unisono_data::{Dataset, Options, Source};
use unisono_strategies::Strategy;
use unisono_train::internals::EVALUATION_BATCH;
use unisono_train::{Outer, Shares};

impl Config {
    /// Returns the data set, as far as known before it is read, by the size of its files. What is larger than the limit stays
    /// in files.
    pub(super) fn needs_of_data(&self) -> MemoryEstimate {
        let files = self.data.size_bytes() as f64;
        let limit = Options::default().in_memory_bytes as f64;
        let data = match &self.data {
            Source::Digits => 22_000.0 * 785.0,
            // Two files, each up to the limit.
            Source::Idx(_) => files.min(2.0 * limit),
            Source::Cifar(_) => files,
            // Tokens, or the place of every 256th character.
            Source::Text(_) if files * NUMBER > limit => files / 32.0,
            Source::Text(_) => files * NUMBER,
            // Raw values, up to the limit, and values as the model sees them: a value has two characters (or bytes) at least. Then
            // labels.
            Source::Csv(_) | Source::Parquet(_) | Source::Arrow(_) => {
                (files * NUMBER).min(2.0 * limit + files / 4.0)
            }
            // They stay in their files, or on other machines.
            Source::TfRecord(_)
            | Source::WebDataset(_)
            | Source::Npy(_)
            | Source::Images(_)
            | Source::Service(_) => 0.0,
        };
        MemoryEstimate { data, ..MemoryEstimate::default() }
    }

    /// Everything but the data set, once that is loaded; nothing for a model that does not fit such data.
    pub(super) fn needs(
        &self,
        strategy: &Strategy,
        ranks: usize,
        shares: Shares,
        dataset: &Dataset,
    ) -> MemoryEstimate {
        let (pass, parts) = match strategy {
            Strategy::Pipeline(pipeline) => {
                let (length, passes) =
                    (pipeline.length(ranks), shares.fixed_passes.unwrap_or(1) / shares.ranks);
                // The first rank keeps the activations of most passes, each of a part of the model.
                let kept = pipeline.schedule.most_kept(0, length, passes) * shares.micro_batch;
                (kept.div_ceil(length * pipeline.schedule.stages_per_rank()), length)
            }
            Strategy::CentralStorage => (self.pass_of(shares), ranks),
            _ => (self.pass_of(shares), 1),
        };
        let mut needs = self.needs_of_replica(shares, pass, dataset);
        for part in [&mut needs.parameters, &mut needs.gradients, &mut needs.optimizer] {
            *part /= parts as f64;
        }
        needs
    }

    /// Returns the most samples of a pass.
    fn pass_of(&self, Shares { ranks, global_batch, .. }: Shares) -> usize {
        match self.world_invariant() {
            Some(parts) => global_batch.div_ceil(parts),
            None => self.batch_size.min(global_batch.div_ceil(ranks)),
        }
    }

    /// Returns the memory of a replica that computes with this many samples at a time.
    fn needs_of_replica(&self, shares: Shares, pass: usize, dataset: &Dataset) -> MemoryEstimate {
        let Shares { ranks, global_batch, .. } = shares;
        let Ok(size) = model::size(self.model, self.hidden.as_deref(), &dataset.kind) else {
            return MemoryEstimate::default();
        };
        let depth = match self.prefetch {
            None => 2,
            Some(depth) => depth.min(dataset.train.len().div_ceil(global_batch)),
        };
        let ready = depth as f64 * global_batch.div_ceil(ranks) as f64 * size.inputs;
        let measured = EVALUATION_BATCH.min(dataset.test.len()) as f64;
        let mut needs =
            MemoryEstimate::of(&size, pass, self.optimizer().rule.state_names().len(), self.wires()[0]);
        // Sums that wait for their counterpart in a tree over the shards of a rank.
        let waiting = self.world_invariant().map_or(0, |parts| (parts / ranks).max(1).ilog2());
        needs.gradients += f64::from(waiting) * needs.parameters;
        needs.batches = NUMBER * ready + needs.batches.max(NUMBER * measured * size.activations);
        if self.checkpoint_dir.is_some() {
            needs.checkpoint = needs.parameters + needs.optimizer;
        }
        if self.local_steps.is_some() && self.outer != Outer::Average {
            // The values at the start of a round, and the velocity.
            needs.optimizer += 2.0 * needs.parameters;
        }
        if self.shard_optimizer {
            needs.optimizer /= ranks as f64;
        }
        needs
    }
}
