//! Buckets that only say which gradient lies where.

use std::time::Duration;

use super::{Bucket, BucketSettings, BucketSize, Buckets, Ledger, Narrow, Parcel, Parts, Way};
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
        let ledger = Ledger::new(parameters, settings, BucketSize::of(comm, settings));
        let way = Way::all_reduce(false);
        let empty = |bucket| {
            let gradients = Parcel::new(comm, Some(bucket), 0)?;
            Ok(Bucket { gradients, narrow: Narrow::No, compressor: None, way, is_back: true })
        };
        let parts = Parts::of(comm, ledger.plan.counts.iter().copied());
        Ok(Self {
            buckets: (0..ledger.plan.counts.len()).map(empty).collect::<Result<_, Error>>()?,
            aside: None,
            tree: None,
            has_others: comm.ranks() > 1,
            is_local: false,
            is_across: false,
            waited: Duration::ZERO,
            way,
            parts: Some(parts),
            is_filled: Vec::new(),
            flights: Vec::new(),
            uncompressed_steps: 0,
            not_finite: None,
            rank: comm.rank(),
            ledger,
        })
    }
}
