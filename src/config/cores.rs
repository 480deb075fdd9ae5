//! The number of cores that a rank uses.

use rustix::process::{Pid, getppid};
use rustix::thread::sched_getaffinity;

/// The number of threads of the trainer's tensor operations.
const TENSOR_THREADS: &str = "RAYON_NUM_THREADS";

/// Sets `RAYON_NUM_THREADS` to a rank's share of the node's cores, for `local_ranks` ranks on this node,
/// unless it is set already.
///
/// The trainer's tensor operations read it. Without it each rank uses every core, and a node with several ranks is oversubscribed
/// (measured with two ranks on two cores: a third of the speed).
///
/// # Safety
/// No other thread may run yet. Call it first in `main`, before [`crate::init`].
#[allow(
    unsafe_code,
    reason = "the environment must not change while other threads read it, which the caller guarantees"
)]
pub unsafe fn share_cores(local_ranks: usize) {
    if std::env::var_os(TENSOR_THREADS).is_none() {
        let threads = share(local_ranks).to_string();
        // SAFETY: no other thread runs, as the caller promises.
        unsafe { std::env::set_var(TENSOR_THREADS, threads) };
    }
}

/// Returns this rank's share of the node's cores. A rank may be bound to some of them. Its launcher is not, so its affinity has all of them.
fn share(local_ranks: usize) -> usize {
    let own = usable(None).unwrap_or(1);
    let node = getppid().and_then(|launcher| usable(Some(launcher))).unwrap_or(own).max(own);
    own.min(node / local_ranks.max(1)).max(1)
}

fn usable(process: Option<Pid>) -> Option<usize> {
    sched_getaffinity(process).ok().map(|set| set.count() as usize)
}
