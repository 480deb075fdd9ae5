//! Signals that a lookout heeds: it is asked for records, or the launcher ends the process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use signal_hook::SigId;
use signal_hook::consts::{SIGTERM, SIGUSR1};
use signal_hook::flag;

/// What a lookout has been told by signals.
#[derive(Debug)]
pub(super) struct Signals {
    asked: Arc<AtomicBool>,
    terminated: Arc<AtomicBool>,
    registered: Vec<SigId>,
    heeded: Vec<&'static Unheeded>,
}

impl Signals {
    /// Heeds SIGUSR1, beside whoever else does; and SIGTERM where `ends_process` and where nobody else did before, so that
    /// the process has time for its last words when a launcher ends it.
    pub(super) fn heed(ends_process: bool) -> Self {
        static ASKED: OnceLock<Option<Unheeded>> = OnceLock::new();
        static TERMINATED: OnceLock<Option<Unheeded>> = OnceLock::new();
        let (asked, terminated) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let (mut registered, mut heeded) = (Vec::new(), Vec::new());
        heeded.extend(ASKED.get_or_init(|| Unheeded::from_now_on(SIGUSR1)));
        registered.extend(flag::register(SIGUSR1, Arc::clone(&asked)));
        if let Some(unheeded) =
            TERMINATED.get_or_init(|| Unheeded::from_now_on(SIGTERM)).as_ref().filter(|_| ends_process)
        {
            heeded.push(unheeded);
            registered.extend(flag::register(SIGTERM, Arc::clone(&terminated)));
        }
        heeded.iter().for_each(|unheeded| unheeded.count(|lookouts| lookouts + 1));
        Self { asked, terminated, registered, heeded }
    }

    /// Whether records were asked for since this was last asked.
    pub(super) fn asked(&self) -> bool {
        self.asked.swap(false, Ordering::Relaxed)
    }

    pub(super) fn terminated(&self) -> bool {
        self.terminated.load(Ordering::Relaxed)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.heeded.iter().for_each(|unheeded| unheeded.count(|lookouts| lookouts - 1));
        for id in self.registered.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}

/// A signal that does what it does by default as long as no lookout heeds it: once a signal has a handler, it keeps one.
#[derive(Debug)]
struct Unheeded {
    is: Arc<AtomicBool>,
    lookouts: Mutex<usize>,
}

impl Unheeded {
    /// `None` where the program has a handler of its own for the signal, or ignores it.
    fn from_now_on(signal: i32) -> Option<Self> {
        let is = Arc::new(AtomicBool::new(true));
        let free = is_free(signal)
            .then(|| flag::register_conditional_default(signal, Arc::clone(&is)).ok())
            .flatten();
        free.map(|_| Self { is, lookouts: Mutex::new(0) })
    }

    fn count(&self, change: impl FnOnce(usize) -> usize) {
        let mut lookouts = self.lookouts.lock().unwrap_or_else(PoisonError::into_inner);
        *lookouts = change(*lookouts);
        self.is.store(*lookouts == 0, Ordering::Relaxed);
    }
}

/// Whether a signal has no handler, and is not ignored.
fn is_free(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let is_in = |mask: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(mask));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_none_or(|mask| mask & (1 << (signal - 1)) != 0)
    };
    !is_in("SigCgt:") && !is_in("SigIgn:")
}

/// Ends this process as SIGTERM would have ended it.
pub(super) fn end_as_terminated() -> ! {
    let _ = signal_hook::low_level::emulate_default_handler(SIGTERM);
    signal_hook::low_level::exit(128 + SIGTERM)
}
