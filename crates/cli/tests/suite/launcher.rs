//! `unisono launch`: the environment of ranks, and their end. Any command suffices, so the tests use a shell.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use unisono_testing::launch::{self, Ended, free_port};
use unisono_testing::suite::Test;
use unisono_testing::tests;

use crate::watch::{self, Guarded, kill, names, until};
use crate::{UNISONO, shell};

mod elastic;
mod signals;

/// A limit for operations that take no time on an idle machine.
const DEADLINE: Duration = Duration::from_secs(60);
/// Half of the sleep of a rank that is not ended.
const SOON: Duration = Duration::from_secs(50);

/// Returns `unisono launch` with these arguments and a shell script whose `$0` is a directory.
fn launcher(arguments: &str, script: &str, directory: &Path) -> Command {
    let mut command = Command::new(UNISONO);
    command.arg("launch").args(arguments.split_whitespace());
    command.args(["--", "sh", "-c", script]).arg(directory);
    // Ranks create their shared files where the test can check them.
    command.env("TMPDIR", directory);
    command
}

fn launched(arguments: &str, script: &str) -> Ended {
    let directory = tempfile::tempdir().unwrap();
    launch::run(launcher(arguments, script, directory.path()), DEADLINE)
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

/// Returns the line that reports the failed rank, without the process id.
fn failure(ended: &Ended) -> String {
    let failures: Vec<_> = ended.stderr.lines().filter(|line| line.contains("(process ")).collect();
    let [failure] = failures[..] else { panic!("{}", ended.stderr) };
    let (before, after) = failure.split_once(" (process ").unwrap();
    let (pid, after) = after.split_once(") ").unwrap();
    assert!(pid.parse::<u32>().is_ok(), "{failure}");
    format!("{before} {after}")
}

fn ranks_get_their_number_and_world_size() {
    let script = "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE";
    let ended = launched("-n 3", script).expect_success();
    assert_eq!(sorted(&ended.stdout), ["0 of 3, 0 of 3", "1 of 3, 1 of 3", "2 of 3, 2 of 3"]);
    assert_eq!(ended.stderr, "");
    let ended = launched("--ranks 1", script).expect_success();
    assert_eq!(ended.stdout, "0 of 1, 0 of 1\n");
}

fn ranks_of_several_machines_are_numbered_consecutively_and_meet_on_the_first() {
    let port = free_port();
    let machine = |node: usize| {
        let arguments =
            format!("-n 2 --nnodes 2 --node-rank {node} --master-addr 127.0.0.1 --master-port {port}");
        let mut command = Command::new(UNISONO);
        command.arg("launch").args(arguments.split_whitespace()).args(["--", UNISONO]);
        command.args("bench --bytes 8:8 --iterations 1 --format json".split_whitespace());
        command.envs([("UNISONO_NETWORK", "tcp"), ("UNISONO_NODES", "2,2"), ("UNISONO_WARNINGS", "off")]);
        launch::run(command, DEADLINE).expect_success().stdout
    };
    let stdout = std::thread::scope(|scope| {
        [0, 1].map(|node| scope.spawn(move || machine(node))).map(|machine| machine.join().unwrap())
    });
    assert!(stdout[0].contains(r#""ranks":4"#) && stdout[0].contains("shm+tcp"), "{}", stdout[0]);
    assert_eq!(stdout[1], "", "rank 0 prints");
    let script = "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, $MASTER_ADDR:$MASTER_PORT";
    let directory = tempfile::tempdir().unwrap();
    let mut pod = launcher("-n 2 --nnodes 3 --node-rank 2 --master-addr node1", script, directory.path());
    // The variables of a launcher that starts a command on each machine.
    pod.envs([("RANK", "2"), ("WORLD_SIZE", "3")]);
    let ended = launch::run(pod, DEADLINE).expect_success();
    assert_eq!(sorted(&ended.stdout), ["4 of 6, 0 of 2, node1:29500", "5 of 6, 1 of 2, node1:29500"]);
    for (wrong, said) in [
        ("--nnodes 2", "--nnodes 2 needs --node-rank"),
        ("--nnodes 2 --node-rank 1", "--nnodes 2 needs --node-rank"),
        (
            "--nnodes 2 --node-rank 2 --master-addr node1",
            "--node-rank must be from 0 to 1 with --nnodes 2, got `2`",
        ),
        ("--nnodes 1 --node-rank 1", "--node-rank must be from 0 to 0 with --nnodes 1, got `1`"),
        (
            "--nnodes 2 --node-rank 0 --master-addr a --master-port 65535",
            "expected a whole number from 1 to 65534",
        ),
        ("--node-rank 1", "arguments were not provided: --nnodes <N>"),
        ("--master-addr node1", "arguments were not provided: <--nnodes <N>|--hosts <HOST[:SLOTS],…>>"),
        ("--master-port 29501", "arguments were not provided: <--nnodes <N>|--hosts <HOST[:SLOTS],…>>"),
    ] {
        let ended = launched(&format!("-n 2 {wrong}"), script);
        assert_eq!((ended.status.code(), ended.stdout.as_str()), (Some(2), ""), "{wrong}");
        assert!(ended.stderr.contains(said), "{wrong}: {}", ended.stderr);
    }
    let ended = launched("-n 1 --nnodes 1 --node-rank 0 --master-addr node1", script).expect_success();
    assert!(ended.stdout.starts_with("0 of 1, 0 of 1"), "{}", ended.stdout);
}

fn ranks_meet_in_a_private_directory_that_is_removed() {
    let script = "d=$UNISONO_BOOTSTRAP_DIR; mkdir $d/$RANK; echo x > $d/$RANK/file; echo $d $(stat -c %a $d)";
    for (last, code) in [("", 0), ("; exit 3", 3), ("; kill -KILL $$", 137)] {
        let directory = tempfile::tempdir().unwrap();
        let command = launcher("-n 2 --grace-s 600", &format!("{script}{last}"), directory.path());
        let ended = launch::run(command, DEADLINE);
        assert_eq!(ended.status.code(), Some(code), "{}", ended.stderr);
        let lines = sorted(&ended.stdout);
        assert_eq!((lines.len(), lines[0]), (2, lines[1]), "{}", ended.stdout);
        let (meeting, mode) = lines[0].split_once(' ').unwrap();
        assert_eq!((Path::new(meeting).parent(), mode), (Some(directory.path()), "700"));
        assert_eq!(names(directory.path()), [""; 0]);
    }
}

/// The ranks of a launch that an MPI has started as a world of one are not worlds of one.
fn variables_of_an_mpi_around_the_launch_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let script = "echo $RANK: $(env | grep -c -e OMPI_COMM_WORLD_ -e PMI_ -e MPI_LOCAL)";
    let mut command = launcher("-n 2", script, directory.path());
    for name in ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"] {
        command.env(name, "1");
    }
    for name in ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK", "MPI_LOCALRANKID"] {
        command.env(name, "0");
    }
    let ended = launch::run(command, DEADLINE).expect_success();
    assert_eq!(sorted(&ended.stdout), ["0: 0", "1: 0"]);
}

fn only_rank_0_reads_standard_input() {
    let line = "echo hello | exec \"$0\" launch -n 3 -- sh -c 'echo $RANK:$(cat)'";
    // The test harness provides no input to the shell, so the launcher reads a pipe.
    let ended = shell(line).expect_success();
    assert_eq!(sorted(&ended.stdout), ["0:hello", "1:", "2:"]);
}

fn first_failed_rank_ends_the_others() {
    for (end, code, said) in [
        ("exit 3", 3, "launch: rank 1 failed with exit code 3"),
        ("exit 2", 2, "launch: rank 1 failed with exit code 2"),
        ("kill -KILL $$", 137, "launch: rank 1 was killed by SIGKILL"),
    ] {
        let began = Instant::now();
        let ended = launched("-n 3 --grace-s 0", &format!("[ $RANK = 1 ] && {end}; exec sleep 100"));
        assert_eq!(ended.status.code(), Some(code), "{}", ended.stderr);
        assert_eq!(failure(&ended), said);
        assert!(
            ended.stderr.contains("launch: 2 of 3 ranks are still running: terminating them\n"),
            "{}",
            ended.stderr
        );
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    }
}

/// A rank that detects a failure itself has time to report it.
fn other_ranks_have_a_grace_period() {
    let script =
        "if [ $RANK = 1 ]; then exit 3; fi; until [ -e $0/go ]; do sleep 0.05; done; echo bye; exit 4";
    let directory = tempfile::tempdir().unwrap();
    let mut command = launcher("-n 2 --grace-s 600", script, directory.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = Guarded(command.spawn().unwrap());
    let mut said = std::io::BufReader::new(run.0.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    assert!(line.starts_with("launch: rank 1 (process "), "{line}");
    fs::write(directory.path().join("go"), "").unwrap();
    assert_eq!(run.ended(DEADLINE).code(), Some(3), "the first that failed");
    let mut rest = [String::new(), String::new()];
    std::io::Read::read_to_string(&mut said, &mut rest[0]).unwrap();
    std::io::Read::read_to_string(&mut run.0.stdout.take().unwrap(), &mut rest[1]).unwrap();
    assert_eq!(rest, ["", "bye\n"]);
}

fn ranks_that_do_not_end_are_killed() {
    let began = Instant::now();
    let script = "trap '' TERM; touch $0/$RANK; until [ -e $0/0 ]; do sleep 0.05; done; \
                  [ $RANK = 1 ] && exit 3; exec sleep 100";
    let ended = launched("-n 2 --grace-s 0", script);
    assert_eq!(ended.status.code(), Some(3), "{}", ended.stderr);
    assert_eq!(failure(&ended), "launch: rank 1 failed with exit code 3");
    assert!(
        ended.stderr.ends_with("launch: 1 of 2 ranks are still running: killing them\n"),
        "{}",
        ended.stderr
    );
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

fn stopped_ranks_are_not_failures() {
    for script in ["exit 75", "[ $RANK = 1 ] || exit 75"] {
        let ended = launched("-n 2", script);
        assert_eq!((ended.status.code(), ended.stderr.as_str()), (Some(75), ""), "{script}");
    }
    let ended = launched("-n 2 --grace-s 600", "[ $RANK = 1 ] && exit 4; exit 75");
    assert_eq!(ended.status.code(), Some(4));
    assert_eq!(failure(&ended), "launch: rank 1 failed with exit code 4");
    let waits = "trap 'exit 75' TERM; touch $0/1; sleep 100 & wait";
    let script = format!("[ $RANK = 1 ] && {{ {waits}; }}; until [ -e $0/1 ]; do sleep 0.05; done; exit 75");
    let ended = launched("-n 2 --grace-s 0", &script);
    assert_eq!(ended.status.code(), Some(75), "{}", ended.stderr);
    let said = "launch: 1 of 2 ranks are still running: stopping them, as one has stopped on request\n";
    assert_eq!(ended.stderr, said);
}

/// The process has left the group and the session of its rank.
fn no_descendant_is_left_running() {
    let directory = tempfile::tempdir().unwrap();
    // The system cuts the name of the process within its last letter.
    let script = "exec >/dev/null 2>&1; name=$0/${RANK}123456789abcdé; cp $(readlink -f /bin/sh) $name; mkfifo $0/pipe-$RANK; \
                  setsid $name -c 'read line <> $0' $0/pipe-$RANK 100 & echo $! > $0/$RANK";
    let ended = launch::run(launcher("-n 2", script, directory.path()), DEADLINE).expect_success();
    assert_eq!(ended.stderr, "launch: killed 2 processes that the ranks left behind\n");
    for rank in ["0", "1"] {
        let pid = fs::read_to_string(directory.path().join(rank)).unwrap().trim().parse().unwrap();
        let lives = watch::words(pid).contains(&"100".to_owned());
        if lives {
            kill("KILL", pid);
        }
        assert!(!lives, "process {pid} of rank {rank} is still there");
    }
}

/// A long run that leaves many short processes behind does not fill the table of processes.
fn orphans_are_reaped_while_ranks_run() {
    let directory = tempfile::tempdir().unwrap();
    let script = "for i in 1 2 3; do (sh -c 'echo $$ >> $0/pids' $0 &); done; exec sleep 100";
    let mut command = launcher("-n 1", script, directory.path());
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let mut run = Guarded(command.spawn().unwrap());
    let pids = || fs::read_to_string(directory.path().join("pids")).unwrap_or_default();
    until("the processes have run", DEADLINE, || (pids().lines().count() == 3).then_some(()));
    let are_gone = || pids().lines().all(|pid| !Path::new("/proc").join(pid).exists()).then_some(());
    until("the processes are reaped", DEADLINE, are_gone);
    assert!(run.0.try_wait().unwrap().is_none());
}

/// Checks for one line, exit code 2, and that no rank was started.
fn invalid_arguments_are_refused() {
    let refused = |arguments: &str, variables: &[(&str, &str)]| {
        let mut command = Command::new(UNISONO);
        command.arg("launch").args(arguments.split_whitespace()).envs(variables.iter().copied());
        let ended = launch::run(command, DEADLINE);
        assert_eq!(ended.stdout, "", "{arguments}");
        (ended.status.code(), ended.stderr)
    };
    for (command, code, why) in
        [("/there/is/no/such/command", 127, "No such file"), ("/", 126, "Permission denied")]
    {
        let (ended, stderr) = refused(&format!("-n 2 -- {command}"), &[]);
        assert_eq!(ended, Some(code), "{stderr}");
        assert!(stderr.starts_with(&format!("launch: cannot run `{command}`: {why}")), "{stderr}");
    }
    for (arguments, said) in [
        ("-n 0 -- true", "expected a whole number from 1 to 1024"),
        ("-n 1025 -- true", "expected a whole number from 1 to 1024"),
        ("-n 2", "required arguments were not provided: <COMMAND>"),
        ("-- true", "required arguments were not provided: --ranks <N>"),
    ] {
        let (code, stderr) = refused(arguments, &[]);
        assert_eq!((code, stderr.lines().count()), (Some(2), 1), "{arguments}: {stderr}");
        assert!(stderr.contains(said), "{arguments}: {stderr}");
    }
    let world = |rank| [("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", rank)];
    let line = "unisono: launch starts the ranks itself, and cannot run as one of 2 ranks: start it without a launcher\n";
    assert_eq!(refused("-n 2 -- echo x", &world("0")), (Some(2), line.to_owned()));
    assert_eq!(refused("-n 2 -- echo x", &world("1")), (Some(2), String::new()));
}

fn lines_of_ranks_are_prefixed_and_logged() {
    let directory = tempfile::tempdir().unwrap();
    let logs = directory.path().join("logs");
    let arguments = format!("-n 3 --prefix --logs {}", logs.display());
    let ended = launched(&arguments, "echo out; printf half >&2; printf line >&2").expect_success();
    assert_eq!(sorted(&ended.stdout), ["[0] out", "[1] out", "[2] out"]);
    assert_eq!(sorted(&ended.stderr), ["[0] halfline", "[1] halfline", "[2] halfline"]);
    for rank in 0..3 {
        let log = fs::read_to_string(logs.join(format!("rank-{rank}.log"))).unwrap();
        assert!(log == "out\nhalfline" || log == "halflineout\n", "{log}");
    }
    launched(&arguments, "echo again").expect_success();
    let log = fs::read_to_string(logs.join("rank-2.log")).unwrap();
    assert!(log.starts_with("out\n") || log.starts_with("half"), "the log of the first job is kept: {log}");
    assert!(log.ends_with("again\n"), "{log}");
    assert_eq!(launched("-n 2 --prefix=false", "echo out").expect_success().stdout, "out\nout\n");
    fs::create_dir(directory.path().join("rank-1.log")).unwrap();
    let arguments = format!("-n 2 --logs {}", directory.path().display());
    let ended = launched(&arguments, "echo out");
    assert_eq!((ended.status.code(), ended.stdout.as_str()), (Some(2), ""), "{}", ended.stderr);
    assert!(ended.stderr.starts_with("unisono: cannot write `"), "{}", ended.stderr);
    assert!(ended.stderr.contains("/rank-1.log`: Is a directory"), "{}", ended.stderr);
    // A reader that closes the pipe ends ranks as if they wrote to it directly.
    let line = "exec \"$0\" launch -n 1 --prefix -- sh -c 'while echo x; do :; done 2>/dev/null' | head -n 1";
    assert_eq!(shell(line).expect_success().stdout, "[0] x\n");
}

fn ranks_fail_if_another_rank_reports_the_failure() {
    let script = format!("{UNISONO} bench --byts 8; echo rank $RANK ended with $?");
    let ended = launched("-n 2", &script);
    assert_eq!(sorted(&ended.stdout), ["rank 0 ended with 2", "rank 1 ended with 2"], "{}", ended.stderr);
    assert_eq!(ended.stderr.matches("--byts").count(), 1, "{}", ended.stderr);
}

fn help_on_one_rank_ends_the_others() {
    let script = format!("if [ $RANK = 1 ]; then {UNISONO} bench --help; else {UNISONO} bench --bytes 8; fi");
    let ended = launched("-n 2", &script);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("on rank 1 (") && ended.stderr.contains("with --help"), "{}", ended.stderr);
    let ended = launched("-n 2", &format!("{UNISONO} bench --help")).expect_success();
    assert_eq!(ended.stdout.matches("Usage: ").count(), 1, "rank 0 alone shows help");
}

pub(crate) fn tests() -> Vec<Test> {
    use elastic::*;
    use signals::*;

    tests![
        ranks_get_their_number_and_world_size,
        ranks_of_several_machines_are_numbered_consecutively_and_meet_on_the_first,
        ranks_meet_in_a_private_directory_that_is_removed,
        variables_of_an_mpi_around_the_launch_are_removed,
        only_rank_0_reads_standard_input,
        first_failed_rank_ends_the_others,
        other_ranks_have_a_grace_period,
        ranks_that_do_not_end_are_killed,
        stopped_ranks_are_not_failures,
        no_descendant_is_left_running,
        orphans_are_reaped_while_ranks_run,
        rank_that_is_killed_at_the_end_is_no_failure,
        failure_that_ends_rank_0_is_reported,
        signals_are_forwarded_to_ranks,
        ranks_of_a_killed_launcher_are_terminated,
        second_hangup_kills_no_rank,
        hangup_is_forwarded_unless_it_is_ignored,
        invalid_arguments_are_refused,
        lines_of_ranks_are_prefixed_and_logged,
        ranks_fail_if_another_rank_reports_the_failure,
        help_on_one_rank_ends_the_others,
    ]
}
