//! What an all-reduce of gradients takes.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use unisono::compress::{Compression, Exchange};
use unisono::select::select;
use unisono::{Operation, Topology};
use unisono_collectives::clock;
use unisono_collectives::model::Machine;

/// A wire format.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Wire {
    F32,
    /// `bf16` or `f16`.
    Half(&'static str),
    Compressed(Compression),
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F32 => f.pad("f32"),
            Self::Half(name) => f.pad(name),
            Self::Compressed(compression) => compression.fmt(f),
        }
    }
}

impl FromStr for Wire {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "f32" => Ok(Self::F32),
            "bf16" => Ok(Self::Half("bf16")),
            "f16" => Ok(Self::Half("f16")),
            _ => match text.parse() {
                Ok(Compression::Threshold { .. }) => {
                    Err("how much threshold sends depends on the gradients: simulate \
                                                          topk:FRACTION, which sends as much as you expect"
                        .to_owned())
                }
                Ok(compression) => Ok(Self::Compressed(compression)),
                Err(error) => Err(format!("{error}; and f32, bf16 and f16")),
            },
        }
    }
}

impl Wire {
    /// The gradients that a core encodes and decodes, in 1e9 bytes of `f32` per second: kernels from memory, with the passes over what
    /// was not sent (`cargo bench --bench codecs`, and the table in docs/performance.md). None if nothing is encoded.
    fn codec_gb_per_s(self) -> Option<f64> {
        Some(match self {
            Self::F32 => return None,
            Self::Half(_) => 9.0,
            Self::Compressed(Compression::TopK { .. } | Compression::Threshold { .. }) => 2.0,
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

/// Prices collectives on a machine, each once.
pub(super) struct Prices<'a> {
    machine: &'a Machine,
    known: HashMap<(usize, usize, Operation, usize), f64>,
}

impl<'a> Prices<'a> {
    pub(super) fn new(machine: &'a Machine) -> Self {
        Self { machine, known: HashMap::new() }
    }

    /// The time of an all-reduce of a bucket with gradients of these shapes: within nodes as `f32`, between them as the format says.
    pub(super) fn all_reduce_us(
        &mut self,
        topology: &Topology,
        wire: Wire,
        shapes: &[&[usize]],
    ) -> Result<f64, String> {
        let count: usize = shapes.iter().map(|shape| shape.iter().product::<usize>()).sum();
        let (nodes, local_ranks) = (topology.nodes(), topology.ranks_of_largest_node());
        let codec_us =
            wire.codec_gb_per_s().map_or(0.0, |rate| (count * size_of::<f32>()) as f64 / (rate * 1e3));
        let of = |operation, element_size_bytes: usize| Exchange {
            operation,
            size_bytes: count * element_size_bytes,
            element_size_bytes,
            leaders: nodes,
        };
        let whole = (nodes, local_ranks);
        match wire {
            Wire::F32 => self.time_us(whole, of(Operation::AllReduce, 4)),
            Wire::Half(_) => Ok(self.time_us(whole, of(Operation::AllReduce, 2))? + codec_us),
            Wire::Compressed(_) if nodes == 1 => self.time_us(whole, of(Operation::AllReduce, 4)),
            Wire::Compressed(compression) => {
                let exchanges = compression.exchanges(shapes, nodes).expect("no threshold is simulated");
                let mut time_us = codec_us;
                for exchange in exchanges {
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

    /// The time by the algorithm that is fastest.
    fn time_us(&mut self, (nodes, local_ranks): (usize, usize), exchange: Exchange) -> Result<f64, String> {
        let Exchange { operation, size_bytes, element_size_bytes, .. } = exchange;
        if nodes * local_ranks == 1 || size_bytes == 0 {
            return Ok(0.0);
        }
        let key = (nodes, local_ranks, operation, size_bytes);
        if let Some(&known) = self.known.get(&key) {
            return Ok(known);
        }
        let topology = Topology::uniform(nodes, local_ranks);
        let machines = std::slice::from_ref(self.machine);
        let algorithm = select(operation, &topology, machines, size_bytes, element_size_bytes).algorithm;
        let predicted =
            clock::predict(algorithm, operation, &topology, self.machine, size_bytes, element_size_bytes);
        let time_us = predicted.map_err(|error| format!("{operation} by {algorithm}: {error}"))?.time_us;
        self.known.insert(key, time_us);
        Ok(time_us)
    }
}
