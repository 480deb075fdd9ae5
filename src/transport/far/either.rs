//! Halves of an exchange over a link or through shared memory.

use unisono_collectives::Rank;

use crate::transport::Failure;
use crate::transport::half::Half;

/// A half with a rank of this node or of another. At most one of them is present.
pub(super) struct Either<N, F> {
    pub(super) near: Option<N>,
    pub(super) far: Option<F>,
}

impl<N: Half, F: Half> Half for Either<N, F> {
    fn other(&self) -> Rank {
        self.near.as_ref().map_or_else(|| self.far.other(), Half::other)
    }

    #[inline]
    fn is_done(&self) -> bool {
        self.near.is_done() && self.far.is_done()
    }

    #[inline]
    fn progress(&mut self) -> Result<bool, Failure> {
        Ok(self.near.progress()? | self.far.progress()?)
    }
}
