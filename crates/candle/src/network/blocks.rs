//! Blocks of operations, which the threads of a rank divide among them.

use std::sync::LazyLock;

use candle_core::utils::get_num_threads;
use gemm::Parallelism;
use rayon::prelude::*;

/// The number of values in a block of an element-wise operation. It is large enough to amortise the cost of starting it, and small enough for the L2
/// cache.
pub(super) const BLOCK: usize = 1 << 14;

/// The number of threads of a rank. candle reads it from the environment or the system at every call.
static THREADS: LazyLock<usize> = LazyLock::new(get_num_threads);

/// Maps items on the threads of this rank. The results are in the order of the items.
pub(super) fn map<T: Send, R: Send>(
    items: impl ExactSizeIterator<Item = T>,
    work: impl Fn(T) -> R + Send + Sync,
) -> Vec<R> {
    if items.len() < 2 || is_alone() {
        return items.map(work).collect();
    }
    let items: Vec<T> = items.collect();
    items.into_par_iter().map(work).collect()
}

/// Returns the number of threads for a matrix product.
pub(super) fn parallelism() -> Parallelism {
    if is_alone() { Parallelism::None } else { Parallelism::Rayon(*THREADS) }
}

/// Returns whether this thread works alone: it is the only one of its rank, or it already runs a part of an operation.
fn is_alone() -> bool {
    *THREADS == 1 || rayon::current_thread_index().is_some()
}
