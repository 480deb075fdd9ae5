//! All that a bucket holds: values and optimizer state, to restore, read and save it.

use unisono::Result;

use super::message::Link;

/// The content of a bucket. All arrays have the bucket's layout.
#[derive(Debug, Clone)]
pub(super) struct ShardState {
    pub(super) values: Vec<f32>,
    /// By the optimizer's names.
    pub(super) moments: Vec<Vec<f32>>,
    /// The updates that the optimizer has made.
    pub(super) updates: u64,
}

impl ShardState {
    /// Returns a bucket of zeros.
    pub(super) fn zeros(count: usize, moments: usize) -> Self {
        Self { values: vec![0.0; count], moments: vec![vec![0.0; count]; moments], updates: 0 }
    }

    pub(super) fn send(&self, link: &mut Link) -> Result<()> {
        let other = link.other();
        link.comm.send(&[self.updates], other)?;
        [&self.values].into_iter().chain(&self.moments).try_for_each(|array| link.comm.send(array, other))
    }

    /// Receives what the other side [sends](ShardState::send), of the same sizes.
    pub(super) fn receive(&mut self, link: &mut Link) -> Result<()> {
        let (other, mut updates) = (link.other(), [0_u64]);
        link.comm.receive(&mut updates, other)?;
        [self.updates] = updates;
        let mut arrays = [&mut self.values].into_iter().chain(&mut self.moments);
        arrays.try_for_each(|array| link.comm.receive(array, other))
    }
}
