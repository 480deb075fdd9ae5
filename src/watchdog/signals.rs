//! Signals: a request for flight recorders, or for the process to end.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::{flag, low_level};

use super::GRACE;
use crate::observe::flush_briefly;

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

    pub(super) fn termination_signal(&self) -> Option<i32> {
        Some(self.termination_signal.load(Ordering::Relaxed) as i32).filter(|&signal| signal != 0)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.handled.iter().for_each(|default_action| default_action.count(|watchdogs| watchdogs - 1));
        for id in self.registered.drain(..) {
            low_level::unregister(id);
        }
    }
}

/// Applies the default action of a signal while no watchdog of this process handles it. An installed handler cannot be removed, and forked
/// children inherit it without the watchdogs.
#[derive(Debug)]
struct DefaultAction {
    /// The process whose watchdogs handle the signal; 0 if none do.
    handled_by: Arc<AtomicU32>,
    watchdogs: Mutex<usize>,
}

impl DefaultAction {
    /// Installs it; `None` if the program handles or ignores the signal itself.
    fn from_now_on(signal: i32) -> Option<Self> {
        if !is_free(signal) {
            return None;
        }
        let handled_by = Arc::new(AtomicU32::new(0));
        let process = Arc::clone(&handled_by);
        let action = move || {
            if process.load(Ordering::Relaxed) != std::process::id() {
                let _ = low_level::emulate_default_handler(signal);
            }
        };
        // SAFETY: an atomic load, `getpid` and `emulate_default_handler` are async-signal-safe, and none of them panics.
        unsafe { low_level::register(signal, action) }.ok()?;
        Some(Self { handled_by, watchdogs: Mutex::new(0) })
    }

    fn count(&self, change: impl FnOnce(usize) -> usize) {
        let mut watchdogs = self.watchdogs.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        let before = if self.handled_by.load(Ordering::Relaxed) == process { *watchdogs } else { 0 };
        *watchdogs = change(before);
        self.handled_by.store(if *watchdogs == 0 { 0 } else { process }, Ordering::Relaxed);
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
    flush_briefly(GRACE);
    let _ = low_level::emulate_default_handler(signal);
    low_level::exit(128 + signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the signal that ended a forked child of this process, after this one was sent to it.
    fn ended_by(sent: i32) -> i32 {
        // SAFETY: the child makes only system calls.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: the calls take no memory, and the last one ends this process.
                unsafe {
                    libc::kill(libc::getpid(), sent);
                    libc::_exit(0)
                }
            }
            child => {
                let mut status = 0;
                // SAFETY: the status is a local variable.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                if libc::WIFSIGNALED(status) { libc::WTERMSIG(status) } else { 0 }
            }
        }
    }

    #[test]
    fn forked_child_is_ended_by_a_signal_that_its_parent_handles() {
        let signals = Signals::install(true);
        assert_eq!(ended_by(SIGTERM), SIGTERM);
        assert_eq!(ended_by(SIGUSR1), SIGUSR1);
        assert_eq!(signals.termination_signal(), None);
    }
}
