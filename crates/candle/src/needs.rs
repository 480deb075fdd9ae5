//! Estimates the memory of a run, and compares it with the available memory before allocating: otherwise the kernel would
//! kill some process, perhaps another one.

use crate::model::Size;
use unisono::Communicator;
use unisono::internals::{AvailableMemory, host};
use unisono::size::approximate;
use unisono_train::{TrainError, Wire, agree};

/// The size of a number in bytes.
pub(super) const NUMBER: f64 = size_of::<f32>() as f64;

/// The estimated memory of a rank, in bytes; small items are ignored.
///
/// Floating-point, so that an absurd size does not overflow.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MemoryEstimate {
    /// The part of the data set that is in memory.
    pub data: f64,
    /// The model's parameters.
    pub parameters: f64,
    /// The gradient buckets, and the sums of a tree.
    pub gradients: f64,
    /// The optimizer state.
    pub optimizer: f64,
    /// Prefetched batches, and the activations for the backward pass.
    pub batches: f64,
    /// Rank 0's copy for checkpoints.
    pub checkpoint: f64,
}

impl MemoryEstimate {
    /// Returns the needs of training a model of this size, with this number of samples per pass, arrays of optimizer state
    /// and wire format.
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

    /// Refuses a run for whose ranks this node lacks memory. All ranks call it.
    ///
    /// # Errors
    /// [`TrainError::Setting`] on the lowest rank of a node without enough memory, [`TrainError::Elsewhere`] on the others.
    pub fn check(&self, comm: &mut Communicator) -> Result<(), TrainError> {
        let topology = comm.topology();
        let node = topology.node_of(comm.rank());
        let (ranks, has_first) = (topology.node(node).ranks(), node == topology.node_of(0));
        let shortage = AvailableMemory::shortage(self.of_node(ranks, has_first) as u64);
        let refused = shortage
            .map_or(Ok(()), |there_is| Err(TrainError::Setting(self.refusal(ranks, has_first, &there_is))));
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
        let named = parts
            .iter()
            .filter(|(_, bytes)| *bytes > 0.0)
            .map(|(name, bytes)| format!("{name} {}", text(*bytes)));
        format!(
            "the {ranks} rank(s) on {} need about {} of memory (each: {}), but only {there_is}: choose a smaller model or batch, or \
             fewer ranks on a node",
            host(),
            text(self.of_node(ranks, has_first)),
            named.collect::<Vec<_>>().join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ranks_of_a_node_are_counted_and_what_is_saved_once() {
        let needs =
            MemoryEstimate { parameters: 3.0, gradients: 4.0, checkpoint: 5.0, ..MemoryEstimate::default() };
        assert_eq!((needs.of_node(4, false), needs.of_node(4, true)), (28.0, 33.0));
    }

    #[test]
    fn what_nobody_has_is_refused_on_all_ranks_in_one_line() {
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
    }
}
