//! Sums other than gradients, and the order of additions.

use std::collections::BTreeMap;

use crate::{Fill, LossSums};

/// The sums over all ranks other than gradients.
#[derive(Debug, Clone, Copy, PartialEq, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Sums {
    /// The sums of the loss and of its targets.
    pub tally: LossSums,
    /// The number of ranks that had no more data for this step.
    pub ranks_out_of_data: f64,
    /// The number of ranks that were asked to stop.
    pub ranks_to_stop: f64,
    /// The number of ranks that ask all to save this step.
    pub ranks_to_save: f64,
}

impl Sums {
    /// The count of numbers that are sent.
    #[doc(hidden)]
    pub const COUNT: usize = 6;

    /// Returns the sums that were sent as these numbers.
    #[doc(hidden)]
    pub fn read(sums: &[f32]) -> Self {
        let sums: [f64; Self::COUNT] = std::array::from_fn(|index| f64::from(sums[index]));
        bytemuck::cast(sums)
    }

    /// Writes the numbers to send.
    #[doc(hidden)]
    pub fn write(self, target: &mut [f32]) {
        let sums: [f64; Self::COUNT] = bytemuck::cast(self);
        target.iter_mut().zip(sums).for_each(|(target, sum)| *target = sum as f32);
    }

    /// Adds both as `f32`, so the result does not depend on which values are added before they are sent.
    fn rounded_sum(self, other: Self) -> Self {
        let [mut sums, mut others] = [[0.0; Self::COUNT]; 2];
        self.write(&mut sums);
        other.write(&mut others);
        Fill::Add.write(&mut sums, &others);
        Self::read(&sums)
    }
}

/// Sums of 1, 2, 4, … passes, each of which waits for the sum of as many further passes, like the digits of a binary counter. Together they form a
/// balanced tree.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// The gradients, by level and by the index of their parameter.
    gradients: BTreeMap<(usize, usize), Vec<f32>>,
    sums: Vec<Sums>,
}

impl Tree {
    /// Returns the number of waiting sums to which the pass with this number, from 0, is added.
    fn carries(pass: usize) -> usize {
        pass.trailing_ones() as usize
    }

    /// Returns the place of a parameter's gradient in a pass that is not the last of its step.
    pub(super) fn waiting(&mut self, pass: usize, parameter: usize, count: usize) -> &mut Vec<f32> {
        let gradient = self.gradients.entry((Self::carries(pass), parameter)).or_default();
        gradient.resize(count, 0.0);
        gradient
    }

    /// Adds the waiting sums to the gradient of a pass.
    pub(super) fn carry(&self, pass: usize, parameter: usize, gradient: &mut [f32]) {
        for level in 0..Self::carries(pass) {
            Fill::Add.write(gradient, &self.gradients[&(level, parameter)]);
        }
    }

    /// Stores and returns the sum of a pass and the sums that waited for it.
    pub(super) fn carry_sums(&mut self, pass: usize, sums: Sums) -> Sums {
        let level = Self::carries(pass);
        let carried = self.sums[..level].iter().fold(sums, |carried, &waiting| carried.rounded_sum(waiting));
        self.sums.resize(self.sums.len().max(level + 1), Sums::default());
        self.sums[level] = carried;
        carried
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_are_added_in_a_balanced_tree() {
        let values = [0.1_f32, 1e8, -3.3, 7.7e-3, 2.0, -1e8, 5.5, 0.3];
        let mut tree = Tree::default();
        let mut total = Vec::new();
        for (pass, value) in values.into_iter().enumerate() {
            let mut gradient = vec![value];
            tree.carry(pass, 0, &mut gradient);
            *tree.waiting(pass, 0, 1) = gradient.clone();
            total = gradient;
        }
        let pairs = values.chunks(2).map(|pair| pair[1] + pair[0]).collect::<Vec<_>>();
        assert_eq!(total[0].to_bits(), ((pairs[3] + pairs[2]) + (pairs[1] + pairs[0])).to_bits());
    }
}
