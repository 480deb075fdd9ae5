//! Signals: a request for flight recorders, or for the process to end.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;

/// The signals received by a watchdog.
#[derive(Debug)]
pub(super) struct Signals {
    asked: Arc<AtomicBool>,
    /// The signal that told the process to end; 0 if none did.
    told_to_end: Arc<AtomicUsize>,
    registered: Vec<SigId>,
    heeded: Vec<&'static Unheeded>,
}

impl Signals {
    /// Handles SIGUSR1, in addition to other handlers; and, if `ends_process`, the signals that end a process and have no
    /// handler yet, so that it has time for its failure report. (An interrupted mpirun sends SIGTERM with Open MPI, SIGINT with
    /// MPICH.)
    pub(super) fn heed(ends_process: bool) -> Self {
        static ASKED: OnceLock<Option<Unheeded>> = OnceLock::new();
        static TO_END: [(i32, OnceLock<Option<Unheeded>>); 2] =
            [(SIGTERM, OnceLock::new()), (SIGINT, OnceLock::new())];
        let (asked, told_to_end) = <(Arc<AtomicBool>, Arc<AtomicUsize>)>::default();
        let (mut registered, mut heeded) = (Vec::new(), Vec::new());
        heeded.extend(ASKED.get_or_init(|| Unheeded::from_now_on(SIGUSR1)));
        registered.extend(flag::register(SIGUSR1, Arc::clone(&asked)));
        for (signal, unheeded) in TO_END.iter().filter(|_| ends_process) {
            if let Some(unheeded) = unheeded.get_or_init(|| Unheeded::from_now_on(*signal)) {
                heeded.push(unheeded);
                registered.extend(flag::register_usize(*signal, Arc::clone(&told_to_end), *signal as usize));
            }
        }
        heeded.iter().for_each(|unheeded| unheeded.count(|watchdogs| watchdogs + 1));
        Self { asked, told_to_end, registered, heeded }
    }

    /// Returns whether flight recorders were requested since the last call.
    pub(super) fn asked(&self) -> bool {
        self.asked.swap(false, Ordering::Relaxed)
    }

    /// The signal that told the process to end, if one did.
    pub(super) fn told_to_end(&self) -> Option<i32> {
        Some(self.told_to_end.load(Ordering::Relaxed) as i32).filter(|&signal| signal != 0)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.heeded.iter().for_each(|unheeded| unheeded.count(|watchdogs| watchdogs - 1));
        for id in self.registered.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}

/// Restores the default effect of a signal when no watchdog handles it: an installed handler cannot be removed.
#[derive(Debug)]
struct Unheeded {
    is: Arc<AtomicBool>,
    watchdogs: Mutex<usize>,
}

impl Unheeded {
    /// `None` if the program handles or ignores the signal itself.
    fn from_now_on(signal: i32) -> Option<Self> {
        let is = Arc::new(AtomicBool::new(true));
        let free = is_free(signal)
            .then(|| flag::register_conditional_default(signal, Arc::clone(&is)).ok())
            .flatten();
        free.map(|_| Self { is, watchdogs: Mutex::new(0) })
    }

    fn count(&self, change: impl FnOnce(usize) -> usize) {
        let mut watchdogs = self.watchdogs.lock().unwrap_or_else(PoisonError::into_inner);
        *watchdogs = change(*watchdogs);
        self.is.store(*watchdogs == 0, Ordering::Relaxed);
    }
}

/// Returns whether a signal has no handler and is not ignored.
fn is_free(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let is_in = |mask: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(mask));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_none_or(|mask| mask & (1 << (signal - 1)) != 0)
    };
    !is_in("SigCgt:") && !is_in("SigIgn:")
}

/// Ends this process by the default effect of the signal.
pub(super) fn end_by(signal: i32) -> ! {
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    signal_hook::low_level::exit(128 + signal)
}

/// The name of a signal that ends a process.
pub(super) fn name(signal: i32) -> &'static str {
    signal_hook::low_level::signal_name(signal).unwrap_or("a signal")
}
