//! Signals to the launcher.

use std::fs;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::{DEADLINE, SOON, launcher};
use crate::UNISONO;
use crate::watch::{self, Guarded, kill, until};

/// A launch of two ranks that write down the signals that they receive.
struct Recording {
    run: Guarded,
    directory: TempDir,
}

impl Recording {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let script = "for s in USR1 INT TERM HUP; do trap \"echo $s >> $0/$RANK\" $s; done; echo up >> $0/$RANK; \
                      while :; do sleep 0.05; done";
        let launcher = launcher("-n 2", script, directory.path());
        // The process that runs the tests may ignore SIGHUP.
        let mut command = Command::new("env");
        command.arg("--default-signal=HUP").arg(launcher.get_program()).args(launcher.get_args());
        command.env("TMPDIR", directory.path()).stdin(Stdio::null()).stderr(Stdio::null());
        let this = Self { run: Guarded(command.spawn().unwrap()), directory };
        this.expect("up\n");
        this
    }

    fn send(&self, signal: &str) {
        kill(signal, self.run.0.id());
    }

    fn expect(&self, expected: &str) {
        let here = |rank: &str| fs::read_to_string(self.directory.path().join(rank)).unwrap_or_default();
        until(expected, DEADLINE, || ["0", "1"].iter().all(|rank| here(rank) == expected).then_some(()));
    }
}

pub(super) fn signals_are_forwarded_to_ranks() {
    let mut ranks = Recording::start();
    ranks.send("USR1");
    ranks.expect("up\nUSR1\n");
    ranks.send("INT");
    ranks.expect("up\nUSR1\nINT\n");
    ranks.send("USR1");
    ranks.expect("up\nUSR1\nINT\nUSR1\n");
    // A user who requests termination a second time does not want to wait.
    ranks.send("TERM");
    assert_eq!(ranks.run.ended(DEADLINE).code(), Some(137));
    ranks.expect("up\nUSR1\nINT\nUSR1\n");
    assert_eq!(watch::with_argument(ranks.directory.path().to_str().unwrap()), [0; 0]);
}

/// No other process would end them.
pub(super) fn ranks_of_a_killed_launcher_are_terminated() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = launcher("-n 2", "touch $0/$RANK; while :; do sleep 0.05; done", directory.path());
    let mut run = Guarded(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let is_up = || ["0", "1"].iter().all(|rank| directory.path().join(rank).exists()).then_some(());
    until("the ranks are up", DEADLINE, is_up);
    kill("KILL", run.0.id());
    run.ended(DEADLINE);
    let name = directory.path().to_str().unwrap();
    until("the ranks have ended", SOON, || watch::with_argument(name).is_empty().then_some(()));
}

/// A closed terminal sends SIGHUP twice.
pub(super) fn second_hangup_kills_no_rank() {
    let mut ranks = Recording::start();
    ranks.send("HUP");
    ranks.expect("up\nHUP\n");
    ranks.send("HUP");
    ranks.send("USR1");
    ranks.expect("up\nHUP\nUSR1\n");
    ranks.send("TERM");
    assert_eq!(ranks.run.ended(DEADLINE).code(), Some(137));
}

/// A closed terminal and Ctrl-\\ end the ranks too, unless they run under `nohup`.
pub(super) fn hangup_is_forwarded_unless_it_is_ignored() {
    // The process that runs the tests may ignore the signal, and its children would inherit that. UCX, which Debian's MPICH loads, installs a handler
    // even if the signal is ignored, unless `UCX_DEBUG_SIGNO` names another one.
    let ignored = "trap '' HUP; UCX_DEBUG_SIGNO=SIGUSR2 exec";
    let heeded = "ulimit -c 0; exec env --default-signal=HUP,QUIT";
    for (start, signal, code) in
        [(heeded, "HUP", Some(129)), (heeded, "QUIT", Some(131)), (ignored, "HUP", Some(0))]
    {
        let directory = tempfile::tempdir().unwrap();
        let inner = "touch $0/$RANK; until [ -e $0/go ]; do sleep 0.05; done";
        let line = format!("{start} \"$0\" launch -n 2 -- sh -c '{inner}' \"$1\"");
        let mut command = Command::new("sh");
        command.args(["-c", &line, UNISONO]).arg(directory.path()).stdin(Stdio::null()).stderr(Stdio::null());
        let mut run = Guarded(command.spawn().unwrap());
        let is_up = || ["0", "1"].iter().all(|rank| directory.path().join(rank).exists()).then_some(());
        until("the ranks are up", DEADLINE, is_up);
        kill(signal, run.0.id());
        if code == Some(0) {
            fs::write(directory.path().join("go"), "").unwrap();
        }
        assert_eq!(run.ended(DEADLINE).code(), code, "{start}, {signal}");
    }
}
