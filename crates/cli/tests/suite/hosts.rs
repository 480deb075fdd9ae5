//! `unisono launch --hosts` with a real sshd, which starts ranks on this machine under the names of several hosts.

use std::fs::{self, Permissions};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use unisono_testing::launch::{self, Ended, free_port};
use unisono_testing::suite::Test;
use unisono_testing::tests;

use crate::UNISONO;
use crate::watch::{Guarded, kill, until, with_argument};

const SSHD: &str = "/usr/sbin/sshd";
const DEADLINE: Duration = Duration::from_secs(60);

fn no_sshd() -> Option<String> {
    (!Path::new(SSHD).is_file()).then(|| "there is no sshd; scripts/setup --tests installs it".to_owned())
}

/// An sshd on this machine with its own keys, and an ssh that reaches it as the hosts `one` and `two`. Nothing listens at the address of `nowhere`.
struct Sshd {
    folder: TempDir,
    _sshd: Guarded,
}

impl Sshd {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        for name in ["host_key", "user_key"] {
            let made =
                Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &at(name)]).status();
            assert!(made.unwrap().success());
        }
        fs::copy(at("user_key.pub"), at("authorized_keys")).unwrap();
        let port = free_port();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\n",
            at("host_key"),
            at("authorized_keys")
        );
        fs::write(at("sshd_config"), config).unwrap();
        // The folder of the system's service, which only root needs.
        let _ = fs::create_dir_all("/run/sshd");
        let mut sshd = Command::new(SSHD);
        sshd.args(["-D", "-e", "-f", &at("sshd_config")]).stdin(Stdio::null()).stderr(Stdio::null());
        let sshd = Guarded(sshd.spawn().unwrap());
        until("sshd listens", DEADLINE, || TcpStream::connect(("127.0.0.1", port)).ok());
        let hosts = format!(
            "Host nowhere\n  Port 1\nHost *\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {}\n  IdentitiesOnly yes\n  \
             UserKnownHostsFile /dev/null\n  StrictHostKeyChecking no\n  LogLevel ERROR\n",
            at("user_key")
        );
        fs::write(at("ssh_config"), hosts).unwrap();
        fs::write(at("ssh"), format!("#!/bin/sh\nexec /usr/bin/ssh -F {} \"$@\"\n", at("ssh_config")))
            .unwrap();
        fs::set_permissions(at("ssh"), Permissions::from_mode(0o755)).unwrap();
        Self { folder, _sshd: sshd }
    }

    /// Returns `unisono launch` with these arguments and a command, in the folder.
    fn launcher(&self, arguments: &str, words: &[&str]) -> Command {
        let path = format!("{}:{}", self.folder.path().display(), std::env::var("PATH").unwrap());
        let port = free_port();
        let mut command = Command::new(UNISONO);
        command.arg("launch").args(arguments.split_whitespace());
        command.args(["--master-addr", "127.0.0.1", "--master-port", &port.to_string(), "--"]).args(words);
        command.current_dir(self.folder.path()).env("PATH", path);
        command
    }

    fn shell(&self, arguments: &str, script: &str) -> Command {
        self.launcher(arguments, &["sh", "-c", script, self.folder.path().to_str().unwrap()])
    }

    fn run(&self, arguments: &str, script: &str) -> Ended {
        launch::run(self.shell(arguments, script), DEADLINE)
    }

    /// Waits until no rank runs whose command names the folder. Other processes belong to the launcher, sshd and ssh.
    fn expect_none_left(&self) {
        let folder = self.folder.path().to_str().unwrap();
        let is_rank = |pid: &u32| crate::watch::words(*pid).first().is_some_and(|word| word == "sh");
        until("no rank is left", DEADLINE, || {
            with_argument(folder).iter().all(|pid| !is_rank(pid)).then_some(())
        });
    }
}

fn ranks_are_numbered_over_all_hosts() {
    let sshd = Sshd::start();
    let script =
        "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, $GREETING, $UNISONO_LABEL, $(pwd)";
    let mut command = sshd.shell("-n 1 --hosts one:2,two --export GREETING", script);
    command.envs([("GREETING", "it's \"me\""), ("UNISONO_LABEL", "x"), ("UNISONO_WARNINGS", "off")]);
    let ended = launch::run(command, DEADLINE).expect_success();
    let mut lines: Vec<_> = ended.stdout.lines().collect();
    lines.sort_unstable();
    let place = sshd.folder.path().display();
    let expected = ["0 of 3, 0 of 2", "1 of 3, 1 of 2", "2 of 3, 0 of 1"];
    let expected = expected.map(|rank| format!("{rank}, it's \"me\", x, {place}"));
    assert_eq!(lines, expected, "{}", ended.stderr);
}

fn ranks_of_hosts_form_a_world() {
    let sshd = Sshd::start();
    let bench = ["bench", "--bytes", "8", "--iterations", "2", "--algorithm", "auto", "--format", "json"];
    let mut command = sshd.launcher("-n 1 --hosts one,two", &[&[UNISONO][..], &bench].concat());
    command.envs([("UNISONO_NETWORK", "tcp"), ("UNISONO_NODES", "1,1"), ("UNISONO_WARNINGS", "off")]);
    let stdout = launch::run(command, DEADLINE).expect_success().stdout;
    assert!(stdout.contains(r#""ranks":2,"nodes":2,"transport":"tcp""#), "{stdout}");
}

fn failed_rank_ends_the_ranks_of_all_hosts() {
    let sshd = Sshd::start();
    let began = Instant::now();
    let ended = sshd.run("-n 1 --hosts one,two --grace-s 0", "[ $RANK = 1 ] && exit 3; sleep 100; :");
    assert_eq!(ended.status.code(), Some(3), "{}", ended.stderr);
    assert!(ended.stderr.contains("launch: rank 1 (process "), "{}", ended.stderr);
    assert!(began.elapsed() < Duration::from_secs(50), "{}", ended.stderr);
    sshd.expect_none_left();
    // ssh reports a lost connection with this code.
    let ended = sshd.run("-n 1 --hosts one,two", "exit 255");
    assert_eq!(ended.status.code(), Some(254), "{}", ended.stderr);
    assert!(!ended.stderr.contains("cannot reach"), "{}", ended.stderr);
    let ended = sshd.launcher("-n 1 --hosts one,two", &["./missing"]);
    let ended = launch::run(ended, DEADLINE);
    assert_eq!(ended.status.code(), Some(127), "{}", ended.stderr);
    assert!(ended.stderr.contains("launch: cannot run `./missing`: No such file"), "{}", ended.stderr);
}

fn log_that_cannot_be_written_is_bad_input() {
    let sshd = Sshd::start();
    fs::create_dir(sshd.folder.path().join("rank-1.log")).unwrap();
    let ended = sshd.run("-n 1 --hosts one,two --logs .", "exit 0");
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("launch: cannot write `"), "{}", ended.stderr);
    assert!(ended.stderr.contains("/rank-1.log`: Is a directory"), "{}", ended.stderr);
}

fn unreachable_host_is_named() {
    let sshd = Sshd::start();
    let ended = sshd.run("-n 1 --hosts one,nowhere --grace-s 0", "sleep 100; :");
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("launch: cannot reach host `nowhere`"), "{}", ended.stderr);
    sshd.expect_none_left();
}

/// Ctrl-C, or a killed launcher, which cannot report its end.
fn ranks_end_with_the_launcher() {
    let sshd = Sshd::start();
    for (signal, code) in [("INT", Some(130)), ("KILL", None)] {
        let script = "echo up > $0/up-$RANK; exec sh -c 'sleep 100; :' $0";
        let mut command = sshd.shell("-n 1 --hosts one,two", script);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut run = Guarded(command.spawn().unwrap());
        let files = ["up-0", "up-1"].map(|name| sshd.folder.path().join(name));
        until("the ranks are up", DEADLINE, || files.iter().all(|file| file.exists()).then_some(()));
        kill(signal, run.0.id());
        assert_eq!(run.ended(DEADLINE).code(), code, "{signal}");
        sshd.expect_none_left();
        files.iter().for_each(|file| fs::remove_file(file).unwrap());
    }
}

pub(crate) fn tests() -> Vec<Test> {
    let tests = tests![
        ranks_are_numbered_over_all_hosts,
        ranks_of_hosts_form_a_world,
        failed_rank_ends_the_ranks_of_all_hosts,
        log_that_cannot_be_written_is_bad_input,
        unreachable_host_is_named,
        ranks_end_with_the_launcher,
    ];
    tests.into_iter().map(|test| test.unless(no_sshd)).collect()
}
