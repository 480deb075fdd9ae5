//! Buckets that only say which gradient lies where.

use super::{BucketSettings, Buckets, Overlap, parts};
use crate::gradients::Parameter;
use unisono::{Communicator, Error};

impl Buckets {
    /// Buckets whose gradients lie elsewhere, and are divided among the ranks.
    ///
    /// # Errors
    /// If there is no memory for them.
    #[doc(hidden)]
    pub fn elsewhere(
        comm: &mut Communicator,
        parameters: &[Parameter],
        settings: &BucketSettings,
    ) -> Result<Self, Error> {
        let BucketSettings { first_bucket_bytes, bucket_bytes, .. } = *settings;
        let overlap = Overlap::InTurn;
        let plain = BucketSettings { first_bucket_bytes, bucket_bytes, overlap, ..BucketSettings::default() };
        let mut buckets = Self::with_memory(comm, parameters, &plain, false)?;
        buckets.parts = Some(parts(comm, buckets.ledger.plan.counts.iter().copied()));
        Ok(buckets)
    }
}
