//! Elements with the largest magnitudes.

use unisono::{Communicator, Result};

use super::Encoder;
use super::sparse::{Doubling, Load, Method, all_gather, dense};
use crate::kernels::sparse::{Largest, Pair};

/// Leaders sum their elements with the largest magnitudes. The sent bytes grow with the number of leaders, until sending all
/// elements is smaller.
///
/// Source: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017.
#[derive(Debug)]
pub(super) struct TopK {
    fraction: f64,
    largest: Largest,
    own: Vec<Pair>,
    /// The pairs of all leaders, for an all-gather.
    all: Vec<u64>,
    doubling: Doubling,
}

impl TopK {
    pub(super) fn new(fraction: f64) -> Self {
        Self {
            fraction,
            largest: Largest::default(),
            own: Vec::new(),
            all: Vec::new(),
            doubling: Doubling::default(),
        }
    }
}

/// Returns the numbers of pairs that leaders send of an array of this many elements.
pub(super) fn load(fraction: f64, elements: usize, leaders: usize) -> Load {
    let most = ((fraction * elements as f64).ceil() as usize).min(elements);
    Load { elements, leaders, most, total: leaders * most }
}

impl Encoder for TopK {
    fn all_reduce(
        &mut self,
        leaders: &mut Communicator,
        values: &mut [f32],
        residual: &mut [f32],
    ) -> Result<bool> {
        let load = load(self.fraction, values.len(), leaders.ranks());
        let failed = self.largest.encode(residual, values, load.most, &mut self.own).err();
        let not_a_number = |index| Pair { index: index as u32, value: f32::NAN };
        match load.method() {
            Method::AllGather => {
                if let Some(index) = failed {
                    // All leaders send the same number of pairs.
                    self.own.resize(load.most, not_a_number(index));
                }
                let counts = vec![load.most as u64; leaders.ranks()];
                all_gather(leaders, &self.own, &counts, &mut self.all, values)
            }
            method => {
                self.own.extend(failed.map(not_a_number));
                match method {
                    Method::Doubling => self.doubling.sum(leaders, &self.own, values),
                    _ => dense(leaders, &self.own, values),
                }
            }
        }
    }
}
