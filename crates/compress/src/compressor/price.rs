//! Predictions of the time of all-reduces of gradients in each format.

use std::collections::HashMap;

use unisono::select::select;
use unisono::{Communicator, Operation, Topology};
use unisono_collectives::clock;
use unisono_collectives::model::Machine;

use super::{Compression, Exchange, Wire};

impl Wire {
    /// Returns the rate at which a core encodes and decodes gradients, in 1e9 bytes of `f32` per second, from memory and with the
    /// passes over the residual (`cargo bench --bench codecs`, and the table in docs/performance.md). `None` if nothing is encoded.
    fn codec_gb_per_s(self) -> Option<f64> {
        Some(match self {
            Self::F32 => return None,
            Self::Bf16 | Self::F16 => 9.0,
            Self::Compressed(Compression::TopK { .. }) => 3.0,
            Self::Compressed(Compression::Threshold { .. }) => 2.5,
            // Measured with four columns.
            Self::Compressed(Compression::PowerSgd { rank }) => 2.5 / (rank as f64 / 4.0).max(1.0),
            Self::Compressed(
                Compression::Int8
                | Compression::Int4
                | Compression::Int8Stochastic
                | Compression::Int4Stochastic
                | Compression::OneBit,
            ) => 3.5,
        })
    }
}

/// Predicts all-reduces of gradients on a machine. Predictions depend only on the constants of the cost model.
#[derive(Debug)]
pub struct Prices {
    machine: Machine,
    known: HashMap<(usize, usize, Operation, usize, usize), f64>,
}

impl Prices {
    /// Returns the predictions for a machine.
    pub fn new(machine: Machine) -> Self {
        Self { machine, known: HashMap::new() }
    }

    /// Returns the predictions with the constants by which this communicator chooses algorithms.
    pub fn of(comm: &mut Communicator) -> Self {
        Self::new(comm.machine().clone())
    }

    /// Returns the time of an all-reduce of gradients of these shapes, with the passes that encode and decode, in
    /// microseconds.
    ///
    /// ```
    /// use unisono_compress::{Compression, Prices, Wire};
    /// use unisono::Topology;
    /// use unisono_collectives::model::Machine;
    ///
    /// let mut prices = Prices::new(Machine::default());
    /// let two_nodes = Topology::uniform(2, 1);
    /// let mut of = |wire| prices.all_reduce_us(&two_nodes, wire, &[&[1024, 1024]]).unwrap();
    /// assert!(of(Wire::Compressed(Compression::Int8)) < of(Wire::F32));
    /// ```
    ///
    /// # Errors
    /// The reason why it cannot be predicted: the size that `threshold` sends depends on the gradients, or the world is too large.
    pub fn all_reduce_us(
        &mut self,
        topology: &Topology,
        wire: Wire,
        shapes: &[&[usize]],
    ) -> Result<f64, String> {
        let count: usize = shapes.iter().map(|shape| shape.iter().product::<usize>()).sum();
        let (nodes, local_ranks) = (topology.nodes(), topology.ranks_of_largest_node());
        let codec_us =
            wire.codec_gb_per_s().map_or(0.0, |rate| (count * size_of::<f32>()) as f64 / (rate * 1e3));
        let of = |operation, element_size_bytes| Exchange::new(operation, count, element_size_bytes, nodes);
        let whole = (nodes, local_ranks);
        match wire {
            Wire::F32 => self.time_us(whole, of(Operation::AllReduce, 4)),
            Wire::Bf16 | Wire::F16 => Ok(self.time_us(whole, of(Operation::AllReduce, 2))? + codec_us),
            Wire::Compressed(_) if nodes == 1 => self.time_us(whole, of(Operation::AllReduce, 4)),
            Wire::Compressed(compression) => {
                let exchanges = compression.exchanges(shapes, nodes);
                let unknown = || {
                    format!(
                        "the message size of {compression} depends on the gradients: simulate topk:FRACTION with the \
                         expected fraction"
                    )
                };
                let mut time_us = codec_us;
                for exchange in exchanges.ok_or_else(unknown)? {
                    time_us += self.time_us((exchange.leaders, 1), exchange)?;
                }
                if local_ranks > 1 {
                    time_us += self.time_us((1, local_ranks), of(Operation::Reduce { root: 0 }, 4))?;
                    time_us += self.time_us((1, local_ranks), of(Operation::Broadcast { root: 0 }, 4))?;
                }
                Ok(time_us)
            }
        }
    }

    /// Returns the time of the fastest algorithm.
    fn time_us(&mut self, (nodes, local_ranks): (usize, usize), exchange: Exchange) -> Result<f64, String> {
        let Exchange { operation, size_bytes, element_size_bytes, .. } = exchange;
        if nodes * local_ranks == 1 || size_bytes == 0 {
            return Ok(0.0);
        }
        let key = (nodes, local_ranks, operation, size_bytes, element_size_bytes);
        if let Some(&known) = self.known.get(&key) {
            return Ok(known);
        }
        let topology = Topology::uniform(nodes, local_ranks);
        let machines = std::slice::from_ref(&self.machine);
        let algorithm = select(operation, &topology, machines, size_bytes, element_size_bytes).algorithm;
        let predicted =
            clock::predict(algorithm, operation, &topology, &self.machine, size_bytes, element_size_bytes);
        let time_us = predicted.map_err(|error| format!("{operation} by {algorithm}: {error}"))?.time_us;
        self.known.insert(key, time_us);
        Ok(time_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prediction_does_not_depend_on_earlier_ones() {
        // Both arrays have the same size, but their parts on three nodes have not.
        let (three_nodes, count) = (Topology::uniform(3, 1), 1 << 20);
        let of = |prices: &mut Prices| prices.all_reduce_us(&three_nodes, Wire::Bf16, &[&[2 * count]]);
        let mut used = Prices::new(Machine::default());
        used.all_reduce_us(&three_nodes, Wire::F32, &[&[count]]).unwrap();
        assert_eq!(of(&mut used), of(&mut Prices::new(Machine::default())));
    }
}
