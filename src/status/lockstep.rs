//! The calls that a vendor carries out without Unisono's messages. Each rank announces its calls, and compares them with those of
//! the other ranks.

use crate::sync::{AtomicU64, Ordering, fence};

/// The number of vendor calls by which a rank may be ahead of another. A rank that is further ahead waits.
pub(crate) const LEAD: u64 = if cfg!(loom) { 1 } else { 128 };
/// The number of announced calls that are kept. A rank that is `LEAD` calls behind still has to compare that many; the rest is a margin.
const KEPT: usize = 2 * LEAD as usize;

/// The announced calls of a rank. Only that rank writes. Zero is the initial state.
#[repr(C, align(128))]
pub(crate) struct Lockstep {
    announced: AtomicU64,
    /// For each of the latest calls, a hash of all calls of the rank up to it.
    histories: [AtomicU64; KEPT],
}

#[cfg_attr(not(any(feature = "nccl", loom)), expect(dead_code, reason = "only NCCL carries out such calls"))]
impl Lockstep {
    pub(crate) fn announced(&self) -> u64 {
        self.announced.load(Ordering::Acquire)
    }

    /// Announces the next call, given a hash of all calls up to it. Returns its number, from 1.
    ///
    /// If two ranks announce call `n` and then read the other's number, at least one of them reads `n` or more: the fences of both
    /// are in one order, and the rank of the later fence reads the number that the other has announced.
    pub(crate) fn announce(&self, history: u64) -> u64 {
        let number = self.announced.load(Ordering::Relaxed) + 1;
        self.history(number).store(history, Ordering::Relaxed);
        self.announced.store(number, Ordering::Release);
        fence(Ordering::SeqCst);
        number
    }

    /// Returns whether call `number` has this history, or is not announced yet.
    pub(crate) fn agrees(&self, number: u64, history: u64) -> bool {
        self.announced() < number || self.history(number).load(Ordering::Relaxed) == history
    }

    fn history(&self, number: u64) -> &AtomicU64 {
        &self.histories[(number % KEPT as u64) as usize]
    }
}

#[cfg(all(test, loom))]
mod tests {
    mod orders;
}
