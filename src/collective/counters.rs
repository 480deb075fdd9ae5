//! Waits for counters in shared memory.

use std::sync::atomic::{AtomicU64, Ordering};

use unisono_collectives::Rank;

use super::{Engine, Options};
use crate::error::{Place, Result};
use crate::record::POINT_TO_POINT;

impl Engine {
    /// Waits until rank `other` has increased a counter in shared memory to a value.
    pub(crate) fn wait_until(
        &mut self,
        operation: &'static str,
        other: Rank,
        options: &Options,
        (counter, value): (&AtomicU64, u64),
    ) -> Result<()> {
        if counter.load(Ordering::Acquire) >= value {
            return Ok(());
        }
        self.check_alive()?;
        let deadlines = self.deadlines(options);
        let waited = self.transport.wait_until(other, (counter, value), &deadlines).map_err(|failure| {
            let (rank, algorithm) = (self.transport.rank(), POINT_TO_POINT);
            let at = Place { rank, operation, sequence: value, algorithm, phase: algorithm, step: 0 };
            failure.at(at, &self.status)
        });
        self.settle(waited)
    }
}
