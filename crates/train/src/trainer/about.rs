//! The description of a run for programs that report it to a user.

use super::Trainer;
use crate::buckets::BucketSize;
use crate::feed::Feed;
use crate::replica::Replica;
use unisono::Ran;

impl<R: Replica, F: Feed<Batch = R::Batch>> Trainer<'_, R, F> {
    /// Returns the method that will all-reduce the largest bucket, and why; `None` if gradients are reduced on GPUs,
    /// where each call decides.
    pub fn all_reduce(&mut self) -> Option<Ran> {
        (!self.mirror.is_on_device()).then(|| self.mirror.buckets().ran(self.world.replicas()))
    }

    /// Returns the size of buckets, and why; `None` if gradients are reduced on GPUs.
    pub fn bucket_size(&self) -> Option<BucketSize> {
        (!self.mirror.is_on_device()).then(|| self.mirror.buckets().size())
    }

    /// Returns the number of buckets, and of those that are reduce-scattered; `None` unless the optimizer is sharded.
    pub fn sharded(&self) -> Option<(usize, usize)> {
        let buckets = self.mirror.buckets();
        buckets.is_divided().then(|| (buckets.len(), buckets.scattered()))
    }
}
