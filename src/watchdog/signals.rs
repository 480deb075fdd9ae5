//! Signals: a request for flight recorders, or for the process to end.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;

use crate::observe::flush;

/// The signals received by a watchdog.
#[derive(Debug)]
pub(super) struct Signals {
    dump_requested: Arc<AtomicBool>,
    /// The termination signal that was received; 0 if none was.
    termination_signal: Arc<AtomicUsize>,
    registered: Vec<SigId>,
    handled: Vec<&'static DefaultAction>,
}

impl Signals {
    /// Installs a handler of SIGUSR1, in addition to other handlers. If `ends_process`, it also handles termination signals that
    /// have no handler yet, so that the process has time for its failure report. An interrupted mpirun sends SIGTERM with Open MPI,
    /// and SIGINT with MPICH.
    pub(super) fn install(ends_process: bool) -> Self {
        static DUMP: OnceLock<Option<DefaultAction>> = OnceLock::new();
        static TERMINATION: [(i32, OnceLock<Option<DefaultAction>>); 2] =
            [(SIGTERM, OnceLock::new()), (SIGINT, OnceLock::new())];
        let (dump_requested, termination_signal) = <(Arc<AtomicBool>, Arc<AtomicUsize>)>::default();
        let (mut registered, mut handled) = (Vec::new(), Vec::new());
        handled.extend(DUMP.get_or_init(|| DefaultAction::from_now_on(SIGUSR1)));
        registered.extend(flag::register(SIGUSR1, Arc::clone(&dump_requested)));
        for (signal, default_action) in TERMINATION.iter().filter(|_| ends_process) {
            if let Some(default_action) = default_action.get_or_init(|| DefaultAction::from_now_on(*signal)) {
                handled.push(default_action);
                registered.extend(flag::register_usize(
                    *signal,
                    Arc::clone(&termination_signal),
                    *signal as usize,
                ));
            }
        }
        handled.iter().for_each(|default_action| default_action.count(|watchdogs| watchdogs + 1));
        Self { dump_requested, termination_signal, registered, handled }
    }

    /// Returns whether a dump of the flight recorders was requested since the last call.
    pub(super) fn take_dump_request(&self) -> bool {
        self.dump_requested.swap(false, Ordering::Relaxed)
    }

    /// Returns the termination signal that was received, if any.
    pub(super) fn termination_signal(&self) -> Option<i32> {
        Some(self.termination_signal.load(Ordering::Relaxed) as i32).filter(|&signal| signal != 0)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.handled.iter().for_each(|default_action| default_action.count(|watchdogs| watchdogs - 1));
        for id in self.registered.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}

/// Applies the default action of a signal while no watchdog handles it. An installed handler cannot be removed.
#[derive(Debug)]
struct DefaultAction {
    is: Arc<AtomicBool>,
    watchdogs: Mutex<usize>,
}

impl DefaultAction {
    /// Installs it; `None` if the program handles or ignores the signal itself.
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

/// Ends this process by the default action of the signal.
pub(super) fn end_by(signal: i32) -> ! {
    flush();
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    signal_hook::low_level::exit(128 + signal)
}

/// Returns the name of a termination signal.
pub(super) fn name(signal: i32) -> &'static str {
    signal_hook::low_level::signal_name(signal).unwrap_or("a signal")
}
