//! Child commands and all their descendants. No descendant outlives its command.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, ChildStdin, Command, ExitStatus};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitOptions, getpid, getppid, kill_process, kill_process_group, set_child_subreaper,
    set_parent_process_death_signal, wait, waitpid,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1};
use signal_hook::low_level::signal_name;

/// The polling interval for commands and signals.
pub(super) const POLL: Duration = Duration::from_millis(20);
/// The interval between searches for orphans that have ended.
const REAP: Duration = Duration::from_secs(5);
/// The time that a command may take to clean up after SIGTERM.
pub(super) const TO_END: Duration = Duration::from_secs(10);
/// The time that processes may take to disappear after SIGKILL. A process that writes to a slow disk needs long.
const TO_DIE: Duration = Duration::from_secs(30);

/// Makes this process the reaper of orphaned descendants, in any session or group. Ranks of a killed launcher are an example: they would otherwise
/// run alongside the ranks of the next run.
pub(super) fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Returns the signals that end or stop a command through this process. SIGHUP and SIGQUIT are among them unless they are ignored, as under `nohup`.
/// (If MPI loads UCX, UCX installs a handler even if SIGHUP is ignored, unless `UCX_DEBUG_SIGNO` names another signal.)
pub(super) fn heeded() -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut heeded = vec![SIGTERM, SIGINT, SIGUSR1];
    heeded.extend([SIGHUP, SIGQUIT].into_iter().filter(|&signal| !ignores(&status, signal)));
    heeded
}

/// Returns whether a process ignores a signal, according to its `/proc/PID/status`.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| (mask >> (signal - 1)) & 1 == 1)
}

/// A running command in its own process group. Signals from a terminal reach it only through this process.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) child: Child,
    /// The pipe for signals to a command that runs on another host. Each signal is a byte.
    pub(super) input: Option<ChildStdin>,
    pub(super) forwards: Vec<JoinHandle<()>>,
}

impl Member {
    pub(super) fn start(mut command: Command) -> io::Result<Self> {
        let child = command.process_group(0).spawn()?;
        Ok(Self { child, input: None, forwards: Vec::new() })
    }

    /// As [`start`](Self::start). The system terminates the command when the calling thread ends, which must live as long as this process.
    pub(super) fn start_bound(mut command: Command) -> io::Result<Self> {
        let launcher = getpid();
        let bind = move || {
            set_parent_process_death_signal(Some(Signal::TERM))?;
            // The launcher may have ended before.
            if getppid() == Some(launcher) { Ok(()) } else { Err(io::ErrorKind::Interrupted.into()) }
        };
        // SAFETY: the closure makes two system calls, which are permitted between fork and exec.
        unsafe { command.pre_exec(bind) };
        Self::start(command)
    }

    /// Sends a signal to the command itself and to no other process. A launcher decides whether to forward it. The command has not been waited for,
    /// so its process id is still valid. If it has just ended, the signal has no effect.
    pub(super) fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Sends a signal to the whole process group, as a terminal does: the command may be a script that wraps the program.
    pub(super) fn signal_group(&mut self, signal: Signal) {
        let Some(input) = &mut self.input else {
            let _ = kill_process_group(Pid::from_child(&self.child), signal);
            return;
        };
        let number = u8::try_from(signal.as_raw()).expect("signals are small numbers");
        // On a write error, the command has ended or lost its connection. The next SIGKILL ends the connection.
        if input.write_all(&[number]).is_err() || signal == Signal::KILL {
            self.input = None;
        }
    }
}

/// Reaps orphans that have ended while commands still run. It does so every few seconds after `last`, because it reads the status of all processes
/// of the system. `is_member` identifies the commands, which their [`Member::child`] reaps.
pub(super) fn reap_orphans(last: &mut Instant, is_member: impl Fn(u32) -> bool) {
    if last.elapsed() < REAP {
        return;
    }
    *last = Instant::now();
    let own = getpid().as_raw_nonzero().get();
    let is_left =
        |process: &Process| process.parent == own && !process.runs && !is_member(process.pid.unsigned_abs());
    // After an error, such as too many open files, the next search reaps.
    for process in descendants().unwrap_or_default().into_iter().filter(is_left) {
        let _ = waitpid(Pid::from_raw(process.pid), WaitOptions::NOHANG);
    }
}

/// Kills all remaining descendants, and returns their number. Call it after all commands have ended or must end.
///
/// # Errors
/// If descendants are still alive after a timeout.
pub(super) fn end() -> io::Result<usize> {
    let (began, mut killed) = (Instant::now(), HashSet::new());
    loop {
        // Reaps orphans that have ended.
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        let left = descendants()?;
        if left.is_empty() {
            return Ok(killed.len());
        }
        if began.elapsed() > TO_DIE {
            let what = format!("processes {left:?} of the command are still alive after SIGKILL");
            return Err(io::Error::new(io::ErrorKind::TimedOut, what));
        }
        for pid in left.iter().filter(|process| process.runs).filter_map(|process| Pid::from_raw(process.pid))
        {
            if kill_process(pid, Signal::KILL).is_ok() {
                killed.insert(pid);
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the exit code for a command that did not start, as a shell does: 127 if it was not found, otherwise 126.
pub(super) fn code_of_unstarted(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
}

/// Returns the exit code as a shell reports it: 128 plus the signal for a killed command.
pub(super) fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Describes how a failed command ended.
pub(super) fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("failed with exit code {code}"),
        (None, Some(signal)) => match signal_name(signal) {
            Some(name) => format!("was killed by {name}"),
            None => format!("was killed by signal {signal}"),
        },
        (None, None) => format!("ended with {status}"),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: i32,
    parent: i32,
    /// Whether the process is running, and not a zombie.
    runs: bool,
}

fn descendants() -> io::Result<Vec<Process>> {
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process that has ended in the meantime has no parent.
        let status = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The system cuts a long name, perhaps within a character.
        if let Some(process) = process(pid, &String::from_utf8_lossy(&status)) {
            children.entry(process.parent).or_default().push(process);
        }
    }
    let mut found = Vec::new();
    let mut next = vec![getpid().as_raw_nonzero().get()];
    while let Some(parent) = next.pop() {
        let of_parent = children.remove(&parent).unwrap_or_default();
        next.extend(of_parent.iter().map(|process| process.pid));
        found.extend(of_parent);
    }
    Ok(found)
}

/// Parses `/proc/PID/stat`: `PID (NAME) STATE PARENT …`. The name may contain any characters.
fn process(pid: i32, status: &str) -> Option<Process> {
    let mut fields = status.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    Some(Process { pid, parent: fields.next()?.parse().ok()?, runs: !matches!(state, "Z" | "X") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_detected() {
        let status =
            "Name:\tx\nSigBlk:\tffffffffffffffff\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000000\n";
        assert_eq!([1, 2, 13, 15].map(|signal| ignores(status, signal)), [true, false, true, false]);
        assert!(!ignores("", SIGHUP));
    }

    #[test]
    fn exit_codes_match_those_of_a_shell() {
        for (raw, expected) in [(3 << 8, (3, "failed with exit code 3")), (9, (137, "was killed by SIGKILL"))]
        {
            let status = ExitStatus::from_raw(raw);
            assert_eq!((code(status), how(status).as_str()), expected);
        }
    }

    #[test]
    fn process_name_may_contain_any_characters() {
        assert_eq!(process(7, "7 (a b) c) S 42 7 7 0"), Some(Process { pid: 7, parent: 42, runs: true }));
        assert_eq!(process(7, "7 (a) Z 42 7 7 0"), Some(Process { pid: 7, parent: 42, runs: false }));
        assert_eq!(process(7, ""), None);
        assert_eq!(process(7, "7 (a"), None);
    }
}
