//! Starts programs under mpirun, with a deadline that no process of a test outlives.

use std::borrow::BorrowMut;
use std::io::Read;
use std::net::TcpListener;
use std::ops::Range;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The package that tests pass to cargo in addition to the built one, so that dependencies are built with the same features as
/// before.
pub const SAME_FEATURES: &str = "unisono-same-features";

/// The result of a program.
#[derive(Debug)]
pub struct Ended {
    /// The exit code, or the signal that killed it.
    pub status: ExitStatus,
    /// Everything written to standard output.
    pub stdout: String,
    /// Everything written to standard error.
    pub stderr: String,
}

impl Ended {
    /// Returns the result if the program succeeded, and panics otherwise.
    pub fn expect_success(self) -> Self {
        assert!(self.status.success(), "{self}");
        self
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\n{}\n{}", self.status, self.stdout, self.stderr)
    }
}

/// Returns the launcher: `mpirun`, or the command in `UNISONO_TEST_MPIRUN`, for a build with another MPI than the
/// default one.
pub fn launcher() -> String {
    std::env::var("UNISONO_TEST_MPIRUN").unwrap_or_else(|_| "mpirun".to_owned())
}

/// Returns the path of this program.
///
/// # Panics
/// If it is not UTF-8.
pub fn this_program() -> String {
    let program = std::env::current_exe().expect("the program has a path");
    program.into_os_string().into_string().expect("a path in UTF-8")
}

/// Ends this process by SIGKILL, like a crash.
pub fn kill_this_process() -> ! {
    signal_process("KILL", std::process::id());
    loop {
        std::thread::park();
    }
}

/// Sends a process a signal, if it still exists.
///
/// # Panics
/// If `kill` does not start.
pub fn signal_process(signal: &str, process: u32) {
    kill(signal, &process.to_string());
}

fn kill(signal: &str, target: &str) {
    let signal = format!("-{signal}");
    Command::new("kill").args([&*signal, "--", target]).status().expect("kill starts");
}

/// Returns the target folder and the profile of this test, so that a script that a test starts does not rebuild.
pub fn target_and_profile() -> (PathBuf, String) {
    let of_profile = outputs();
    let name = of_profile.file_name().and_then(|name| name.to_str()).expect("a profile has a name");
    let profile = if name == "debug" { "dev" } else { name };
    (of_profile.parent().expect("profiles are in a folder").to_owned(), profile.to_owned())
}

/// Returns the folder of cargo's outputs for the profile of this test.
pub(crate) fn outputs() -> PathBuf {
    let test = std::env::current_exe().expect("the program has a path");
    test.ancestors().nth(2).expect("tests lie in target/PROFILE/deps").to_owned()
}

/// Returns whether the launcher is Open MPI's.
pub fn is_open_mpi() -> bool {
    static OPEN_MPI: LazyLock<bool> = LazyLock::new(|| {
        let version = Command::new(launcher()).arg("--version").output().expect("the launcher starts");
        String::from_utf8_lossy(&version.stdout).contains("Open MPI")
    });
    *OPEN_MPI
}

/// Returns `mpirun -n ranks program`, permitted as root and for more ranks than cores.
pub fn mpirun(ranks: usize, program: &str) -> Command {
    let mut command = Command::new(launcher());
    command.args(["-n", &ranks.to_string()]);
    if is_open_mpi() {
        command.arg("--oversubscribe");
        command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    }
    command.arg(program);
    command
}

/// Returns a shell loop that starts a program once per rank, without MPI, and fails if one of them does.
pub fn processes(ranks: usize, program: &str) -> Command {
    let mut command = Command::new("sh");
    let numbers = (0..ranks).map(|rank| rank.to_string()).collect::<Vec<_>>().join(" ");
    let script = format!(
        "for rank in {numbers}; do RANK=$rank WORLD_SIZE={ranks} \"$0\" \"$@\" & started=\"$started $!\"; done; \
         for process in $started; do wait \"$process\" || failed=$?; done; exit \"${{failed:-0}}\""
    );
    // It distinguishes jobs that start at the same time in one session.
    command.args(["-c", &script, program]).env("MASTER_PORT", free_port().to_string());
    command
}

/// The options for a separate PID namespace per rank.
const UNSHARE: [&str; 4] = ["--pid", "--fork", "--kill-child", "--mount-proc"];

/// Returns the reason why the kernel does not permit [`containers`], if it does not.
pub fn no_containers() -> Option<String> {
    match Command::new("unshare").args(UNSHARE).arg("true").output() {
        Ok(check) if check.status.success() => None,
        Ok(check) => Some(String::from_utf8_lossy(&check.stderr).trim().to_owned()),
        Err(error) => Some(format!("`unshare` does not start: {error}")),
    }
}

/// Returns the reason why no program can load UCX here, if none can.
pub fn no_ucx() -> Option<String> {
    let known = Command::new("ldconfig").arg("-p").output().expect("ldconfig starts");
    let has = String::from_utf8_lossy(&known.stdout).contains("libucp.so.0 ");
    (!has).then(|| "libucp.so.0 is not installed (scripts/setup --tests)".to_owned())
}

/// Like [`processes`], with each rank in a separate PID namespace, as in a container. Ranks then treat each other as being on other
/// machines.
pub fn containers(ranks: usize, program: &str) -> Command {
    // The first process of a PID namespace cannot kill itself.
    let script = format!("unshare {} sh -c '\"$0\" & wait $!' \"$0\"", UNSHARE.join(" "));
    let mut command = processes(ranks, "sh");
    command.args(["-c", &script, program]).env("LOCAL_WORLD_SIZE", "1");
    command.env("MASTER_ADDR", "127.0.0.1");
    command
}

/// The ports of tests. The kernel assigns no port below 32 768 to connections, so none occupies it before the test does.
const PORTS: Range<u32> = 10_000..32_000;

/// Returns the port that a process tries after `tried` others. Of 11 000 successive processes, no two begin at one port.
fn port(process: u32, tried: u32) -> u16 {
    let place = process.wrapping_mul(202).wrapping_add(2 * tried);
    (PORTS.start + place % (PORTS.end - PORTS.start)) as u16
}

/// Returns a free port whose successor, the rendezvous port of ranks with this `MASTER_PORT`, is free too.
///
/// # Panics
/// If no port is free.
pub fn free_port() -> u16 {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let is_free = |port: u16| TcpListener::bind(("0.0.0.0", port)).is_ok();
    let mut ports = std::iter::repeat_with(|| port(std::process::id(), TRIED.fetch_add(1, Relaxed)));
    let tries = (PORTS.end - PORTS.start) as usize / 2;
    ports.by_ref().take(tries).find(|&port| is_free(port) && is_free(port + 1)).expect("a port is free")
}

/// Returns the output of a crate's example under mpirun.
///
/// # Panics
/// If it is not built, fails, or takes longer than a minute.
pub fn example(name: &str, ranks: usize) -> String {
    example_with(name, ranks, &[])
}

/// Like [`example`], with arguments.
///
/// # Panics
/// As [`example`].
pub fn example_with(name: &str, ranks: usize, arguments: &[&str]) -> String {
    let program = outputs().join("examples").join(name);
    assert!(
        program.exists(),
        "{} is not built: run `cargo build --examples` first, in the same profile",
        program.display()
    );
    let mut command = mpirun(ranks, program.to_str().expect("a path in UTF-8"));
    command.args(arguments);
    run(command, Duration::from_secs(60)).expect_success().stdout
}

/// Runs a command to its end. After the deadline, it kills the command with all its children.
pub fn run(mut command: impl BorrowMut<Command>, deadline: Duration) -> Ended {
    run_and(command.borrow_mut(), deadline, |_, _| ())
}

/// Like [`run`], but interrupts the command and its children once it has written to standard output, as Ctrl-C does.
pub fn run_and_interrupt(mut command: Command, deadline: Duration) -> Ended {
    run_and(&mut command, deadline, |child, has_spoken| {
        if has_spoken.recv_timeout(deadline).is_ok() {
            signal_all(child, "INT");
        }
    })
}

fn run_and(
    command: &mut Command,
    deadline: Duration,
    meanwhile: impl FnOnce(&Child, &Receiver<()>),
) -> Ended {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (speaks, has_spoken) = channel();
    let stdout = drain(child.stdout.take().unwrap(), move || {
        let _ = speaks.send(());
    });
    let stderr = drain(child.stderr.take().unwrap(), || ());
    meanwhile(&child, &has_spoken);
    let status = wait(&mut child, deadline);
    let until = Instant::now() + deadline;
    let [stdout, stderr] = [stdout, stderr].map(|drained| {
        output(drained, until)
            .unwrap_or_else(|| panic!("a process that outlives {command:?} keeps its output open"))
    });
    let status =
        status.unwrap_or_else(|| panic!("{command:?} took more than {deadline:?}\n{stdout}\n{stderr}"));
    Ended { status, stdout, stderr }
}

/// Reads a pipe to its end, and signals the first read.
fn drain(mut pipe: impl Read + Send + 'static, begins: impl FnOnce() + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = vec![0; 1];
        let first = pipe.read(&mut text).expect("a pipe is read");
        text.truncate(first);
        begins();
        pipe.read_to_end(&mut text).expect("a pipe is read");
        String::from_utf8_lossy(&text).into_owned()
    })
}

/// Returns the content of a pipe, unless it is still open at the deadline.
fn output(drained: JoinHandle<String>, deadline: Instant) -> Option<String> {
    while !drained.is_finished() {
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Some(drained.join().unwrap())
}

fn wait(child: &mut Child, deadline: Duration) -> Option<ExitStatus> {
    if let Some(status) = poll(child, deadline) {
        return Some(status);
    }
    // A launcher ends its ranks on request. They are in other process groups.
    for signal in ["TERM", "KILL"] {
        signal_all(child, signal);
        if poll(child, Duration::from_secs(5)).is_some() {
            break;
        }
    }
    None
}

/// Sends a signal to the child's process group.
fn signal_all(child: &Child, signal: &str) {
    kill(signal, &format!("-{}", child.id()));
}

fn poll(child: &mut Child, deadline: Duration) -> Option<ExitStatus> {
    let started = Instant::now();
    while started.elapsed() < deadline {
        if let Some(status) = child.try_wait().expect("the child belongs to this process") {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn successive_processes_begin_at_different_even_ports() {
        let first: BTreeSet<_> = (1..=11_000).map(|process| port(process, 0)).collect();
        assert!(first.len() == 11_000 && first.iter().all(|port| port % 2 == 0));
    }

    #[test]
    fn pipe_that_stays_open_is_given_up_at_the_deadline() {
        let (open, closed) = channel::<()>();
        let drained = std::thread::spawn(move || {
            let _ = closed.recv();
            String::new()
        });
        assert_eq!(output(drained, Instant::now()), None);
        drop(open);
    }
}
