//! Observes processes and checkpoints.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use crate::UNISONO;

/// Returns `unisono supervise` with these arguments, `--`, and a command.
pub(crate) fn supervise(arguments: &[&str], command: &Command) -> Command {
    let mut supervise = Command::new(UNISONO);
    supervise.arg("supervise").args(arguments).arg("--").arg(command.get_program()).args(command.get_args());
    supervise.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    supervise
}

pub(crate) fn kill(signal: &str, pid: u32) {
    let status = Command::new("kill").args([&format!("-{signal}"), "--", &pid.to_string()]).status();
    // The process may have ended in the meantime.
    let _ = status.expect("kill starts");
}

/// A child that is killed if the test fails.
pub(crate) struct Guarded(pub(crate) Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            for pid in descendants(self.0.id()) {
                kill("KILL", pid);
            }
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

impl Guarded {
    /// Waits for at most this time, and returns the exit status.
    pub(crate) fn ended(&mut self, deadline: Duration) -> ExitStatus {
        until("the command ends", deadline, || self.0.try_wait().expect("the child is ours"))
    }
}

/// Polls until `look` returns a value.
pub(crate) fn until<T>(what: &str, deadline: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < deadline, "{what}: not within {deadline:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the process ids of all descendants of a process.
pub(crate) fn descendants(root: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").expect("there is /proc") {
        let Some(pid) = entry.ok().and_then(|entry| entry.file_name().to_str()?.parse().ok()) else {
            continue;
        };
        let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent =
            status.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        children.entry(parent.unwrap_or(0)).or_default().push(pid);
    }
    let (mut found, mut next) = (Vec::new(), vec![root]);
    while let Some(parent) = next.pop() {
        let of_parent = children.remove(&parent).unwrap_or_default();
        next.extend(&of_parent);
        found.extend(of_parent);
    }
    found
}

/// Returns all processes, of any user, with this text in their command line.
pub(crate) fn with_argument(text: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("there is /proc");
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| words(*pid).iter().any(|word| word.contains(text))).collect()
}

/// Returns the command line of a process, or nothing if it has ended.
pub(crate) fn words(pid: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|&byte| byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// Returns the ranks among the descendants of a process.
pub(crate) fn ranks(root: u32) -> Vec<u32> {
    let is_rank = |pid: &u32| {
        let words = words(*pid);
        words[0] == UNISONO && words.get(1).is_some_and(|word| word == "train")
    };
    let mut ranks: Vec<_> = descendants(root).into_iter().filter(is_rank).collect();
    ranks.sort_unstable();
    ranks
}

/// Returns the name of the newest checkpoint in a directory.
pub(crate) fn newest(directory: &Path) -> Option<String> {
    names(directory).into_iter().filter(|name| name.starts_with("step-")).max()
}

/// Returns whether a checkpoint is being written.
pub(crate) fn is_writing(directory: &Path) -> bool {
    names(directory).iter().any(|name| name.ends_with(".partial"))
}

pub(crate) fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

/// Returns the last line of a run's JSON output, if it is this event.
pub(crate) fn last_event(stdout: &str, event: &str) -> serde_json::Value {
    let mut lines = stdout.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let last = lines.next_back().unwrap_or_else(|| panic!("no figures in {stdout:?}"));
    assert_eq!(last["event"], event, "{stdout}");
    last
}
