//! The data of a worker's own lane of shares, made ahead.

use unisono_data::DataError;
use unisono_train::{RandomAccessFeed, Steps};

/// The shares of one number, of which a worker usually takes one after the other.
pub(super) struct SharePrefetcher<B> {
    /// The number of its shares, and how many a step has.
    number: usize,
    of: usize,
    ahead: Option<Prefetched<B>>,
}

struct Prefetched<B> {
    epoch: usize,
    /// The step of the next share.
    step: usize,
    shares: Steps<B>,
}

impl<B: Send + 'static> SharePrefetcher<B> {
    pub(super) fn new(number: usize, of: usize) -> Self {
        Self { number, of, ahead: None }
    }

    /// Returns the batches of a share, of this lane or another.
    ///
    /// # Errors
    /// An error of the data.
    pub(super) fn share(
        &mut self,
        feed: &mut impl RandomAccessFeed<Batch = B>,
        (epoch, step, number): (usize, usize, usize),
    ) -> Result<Vec<Option<B>>, DataError> {
        let of = self.of;
        if number != self.number {
            return feed.share(epoch, step, number, of);
        }
        let follows = |ahead: &Prefetched<B>| ahead.epoch == epoch && ahead.step <= step;
        if !self.ahead.as_ref().is_some_and(follows) {
            let shares = feed.lane(epoch, step, number, of)?;
            self.ahead = shares.map(|shares| Prefetched { epoch, step, shares });
        }
        let Some(ahead) = &mut self.ahead else { return feed.share(epoch, step, number, of) };
        // Others may have taken some in between.
        let passed = step - std::mem::replace(&mut ahead.step, step + 1);
        match ahead.shares.nth(passed) {
            Some(share) => share,
            None => feed.share(epoch, step, number, of),
        }
    }
}
