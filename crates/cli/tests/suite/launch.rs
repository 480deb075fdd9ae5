//! Failing launches: the error message, the number of times that it is printed, and the time until the launch ends.

use std::process::Command;
use std::time::{Duration, Instant};

mod limits;
mod preload;
pub(crate) mod ranks;

use unisono_testing::launch::{self, Ended, this_program};
use unisono_testing::suite::{self, Test};
use unisono_testing::tests;

use crate::{UNISONO, count};

const DEADLINE: Duration = Duration::from_secs(60);
/// Errors must arrive while a user is still waiting.
const SOON: Duration = Duration::from_secs(20);
/// A rank waits at least 20 s for the others to begin.
const PATIENT: Duration = Duration::from_secs(40);

pub(crate) fn tests() -> Vec<Test> {
    [mismatches(), launchers(), preload::tests(), limits::tests()].into_iter().flatten().collect()
}

/// Makes a command start this program as a rank with a role.
fn play<'a>(command: &'a mut Command, role: &str) -> &'a mut Command {
    suite::play(command, "launch", role)
}

/// Returns a command that starts ranks of this program with a role.
fn ranks(ranks: usize, role: &str) -> Command {
    let mut command = launch::mpirun(ranks, &this_program());
    play(&mut command, role);
    command
}

fn run(command: Command) -> Ended {
    launch::run(command, DEADLINE)
}

/// Returns the lines that Unisono prints, and not an MPI.
fn our_lines(ended: &Ended) -> Vec<&str> {
    ended.stderr.lines().filter(|line| line.starts_with("unisono: ")).collect()
}

/// Runs rank 0 with one value of an environment variable, and rank 1 with another.
fn differing(name: &str, values: (&str, &str), role: &str) -> Ended {
    let mut command = ranks(1, role);
    let (program, set) = (this_program(), format!("{name}={}", values.1));
    command.env(name, values.0).args([":", "-n", "1", "env", &set, &program]);
    let started = Instant::now();
    let ended = run(command);
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    ended
}

/// Settings whose value differs on one rank.
fn mismatches() -> Vec<Test> {
    let settings = [
        ("UNISONO_TRANSPORT", "auto", "mpi"),
        ("UNISONO_NODES", "1,1", "2"),
        ("UNISONO_ALGORITHM", "ring", "tree"),
        ("UNISONO_SEGMENT_BYTES", "128", "64"),
    ];
    let mut trials: Vec<_> = settings
        .into_iter()
        .map(|(name, one, other)| {
            Test::new(format!("{name} that differs is refused on both ranks"), move || {
                let ended = differing(name, (one, other), "start");
                assert!(!ended.status.success());
                let said = format!("{name} is {one} on rank 0 (");
                assert_eq!(count(&ended.stdout, &said), 2, "{}\n{}", ended.stdout, ended.stderr);
                assert_eq!(count(&ended.stdout, &format!("and {other} on rank 1 (")), 2, "{}", ended.stdout);
            })
        })
        .collect();
    trials.push(Test::new("a setting of one rank that makes no sense is an error of both", || {
        let ended = differing("UNISONO_TRANSPORT", ("auto", "tcp"), "start");
        assert!(!ended.status.success());
        assert_eq!(count(&ended.stdout, "on rank 1 ("), 2, "{}\n{}", ended.stdout, ended.stderr);
        assert_eq!(count(&ended.stdout, "UNISONO_TRANSPORT is \"tcp\", and should be auto or mpi"), 2);
    }));
    trials.push(Test::new("settings that may differ do", || {
        differing("UNISONO_TIMEOUT_S", ("100", "200"), "sum").expect_success();
        differing("UNISONO_WARNINGS", ("on", "off"), "sum").expect_success();
    }));
    trials
}

fn launchers() -> Vec<Test> {
    let mut tests = tests![
        srun_without_pmi_is_refused_with_the_remedy,
        single_process_in_a_larger_slurm_job_warns,
        more_ranks_than_cores_is_reported_at_most_once,
        threads_option_is_refused_with_several_processes,
        mpi_is_initialised_once_and_a_second_world_is_refused,
    ];
    let never = tests![missing_ranks_are_waited_for_until_the_deadline];
    // The test takes 20 s, and the wait loop is the same over the other MPI.
    let never = never.into_iter().map(|test| if launch::is_open_mpi() { test } else { test.deep() });
    tests.extend(never);
    let foreign = tests![
        mpirun_of_another_mpi_is_refused_quickly_with_both_names,
        mpirun_of_another_mpi_is_reported_once_and_found_by_doctor
    ];
    tests.extend(foreign.into_iter().map(|test| test.unless(no_foreign_mpirun)));
    let bound = tests![ranks_bound_to_one_core_are_reported];
    tests.extend(bound.into_iter().map(|test| test.unless(one_core)));
    tests
}

/// Returns the launcher of the MPI that this program was not built with.
fn foreign_launcher() -> &'static str {
    if launch::is_open_mpi() { "mpirun.mpich" } else { "mpirun.openmpi" }
}

fn no_foreign_mpirun() -> Option<String> {
    let name = foreign_launcher();
    let is_there = Command::new(name).arg("--version").output().is_ok();
    (!is_there).then(|| format!("there is no {name}: `scripts/setup --tests` installs it"))
}

fn foreign_mpirun(program: &str) -> Command {
    let mut command = Command::new(foreign_launcher());
    command.args(["-n", "3"]);
    if !launch::is_open_mpi() {
        command.arg("--oversubscribe");
        command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    }
    command.arg(program);
    command
}

/// Returns the name of the launcher from the other MPI, and the name of this program's MPI library.
fn foreign_names() -> (&'static str, &'static str) {
    if launch::is_open_mpi() {
        ("the mpirun of MPICH", "(Open MPI v")
    } else {
        ("Open MPI's mpirun", "(MPICH ")
    }
}

fn mpirun_of_another_mpi_is_refused_quickly_with_both_names() {
    let mut command = foreign_mpirun(&this_program());
    play(&mut command, "start");
    let started = Instant::now();
    let ended = run(command);
    assert!(started.elapsed() < SOON && !ended.status.success(), "{:?}, {ended:?}", started.elapsed());
    // The launcher may end the other ranks after the first one has reported the error.
    let (launcher, library) = foreign_names();
    let line = ended.stdout.lines().find(|line| line.contains("sees a world of 1")).unwrap_or_default();
    assert!(line.contains(launcher) && line.contains(library) && line.contains("started 3"), "{ended:?}");
    assert_eq!(count(&ended.stdout, "has begun"), 0, "{ended:?}");
}

fn mpirun_of_another_mpi_is_reported_once_and_found_by_doctor() {
    let (launcher, _) = foreign_names();
    let mut bench = foreign_mpirun(UNISONO);
    bench.args(["bench", "--bytes", "8"]);
    let ended = run(bench);
    assert_eq!((ended.status.code(), count(&ended.stderr, launcher)), (Some(2), 1), "{ended:?}");
    let mut doctor = foreign_mpirun(UNISONO);
    doctor.arg("doctor");
    let ended = run(doctor);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert_eq!(count(&ended.stdout, "WRONG launch "), 1, "{ended:?}");
    for subject in ["ok    unisono ", "ok    MPI ", "ok    /dev/shm ", "processor "] {
        assert_eq!(count(&ended.stdout, subject), 1, "{subject} in {}", ended.stdout);
    }
}

/// Sets the environment of a Slurm task.
fn slurm(command: &mut Command, variables: &[(&str, &str)]) {
    command.env("SLURM_JOB_ID", "7").envs(variables.iter().copied());
}

fn srun_without_pmi_is_refused_with_the_remedy() {
    for rank in ["0", "3"] {
        let mut task = Command::new(this_program());
        play(&mut task, "start");
        slurm(&mut task, &[("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_PROCID", rank), ("SLURM_NTASKS", "4")]);
        let ended = run(task);
        assert!(!ended.status.success());
        let said = ["srun started 4 processes", "sees a world of 1", "`srun --mpi=pmi"];
        assert!(said.iter().all(|said| ended.stdout.contains(said)), "{ended:?}");
    }
}

fn single_process_in_a_larger_slurm_job_warns() {
    let start = |variables: &[(&str, &str)]| {
        let mut script = Command::new(this_program());
        play(&mut script, "sum");
        slurm(&mut script, variables);
        run(script).expect_success()
    };
    let job = [("SLURM_NTASKS", "8"), ("SLURM_PROCID", "0")];
    let ended = start(&job);
    assert_eq!(our_lines(&ended).len(), 1, "{ended:?}");
    assert!(our_lines(&ended)[0].contains("this Slurm job has 8 tasks, but this process is a world of one"));
    let ended = start(&[&job[..], &[("UNISONO_WARNINGS", "off")]].concat());
    assert!(our_lines(&ended).is_empty(), "{ended:?}");
    assert!(our_lines(&start(&[("SLURM_NTASKS", "1")])).is_empty());
}

fn missing_ranks_are_waited_for_until_the_deadline() {
    let mut command = ranks(1, "start");
    command.env("UNISONO_TIMEOUT_S", "3").args([":", "-n", "1", "sleep", "50"]);
    let started = Instant::now();
    let ended = run(command);
    assert!(started.elapsed() < PATIENT && !ended.status.success(), "{:?}, {ended:?}", started.elapsed());
    assert!(ended.stderr.contains("for all 2 ranks to begin"), "{ended:?}");
    assert_eq!(count(&ended.stderr, "this process gives up"), 1, "{ended:?}");
}

fn more_ranks_than_cores_is_reported_at_most_once() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let said = format!("{} ranks on ", cores + 1);
    let line = format!("take turns on {cores} cores");
    let ended = run(ranks(cores + 1, "sum")).expect_success();
    let lines = our_lines(&ended);
    assert!(lines.len() == 1 && lines[0].contains(&said) && lines[0].contains(&line), "{ended:?}");
    let mut quiet = ranks(cores + 1, "sum");
    quiet.env("UNISONO_WARNINGS", "off");
    assert!(our_lines(&run(quiet).expect_success()).is_empty());
    assert!(our_lines(&run(ranks(cores, "sum")).expect_success()).is_empty());
}

fn one_core() -> Option<String> {
    let is_one = std::thread::available_parallelism().map_or(1, usize::from) == 1;
    is_one.then(|| "there is one core".to_owned())
}

/// Cores that the launcher excludes do not count.
fn ranks_bound_to_one_core_are_reported() {
    let mpirun = ranks(2, "sum");
    let mut bound = Command::new("taskset");
    bound.args(["-c", "0"]).arg(mpirun.get_program());
    if launch::is_open_mpi() {
        bound.args(["--bind-to", "none"]);
    }
    bound.args(mpirun.get_args());
    bound.envs(mpirun.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ended = run(bound).expect_success();
    let lines = our_lines(&ended);
    assert!(lines.len() == 1 && lines[0].contains("2 ranks on "), "{ended:?}");
    assert!(
        lines[0].contains("take turns on 1 cores of the ") && lines[0].contains("that it has"),
        "{ended:?}"
    );
}

fn threads_option_is_refused_with_several_processes() {
    let mut command = launch::mpirun(2, UNISONO);
    command.args(["bench", "--threads", "2", "--bytes", "8"]);
    let ended = run(command);
    assert_eq!(ended.status.code(), Some(2), "{ended:?}");
    assert_eq!(
        count(&ended.stderr, "--threads 2 would start a separate world in each of the 2 launched processes"),
        1,
        "{ended:?}"
    );
}

fn mpi_is_initialised_once_and_a_second_world_is_refused() {
    let ended = run(ranks(2, "again")).expect_success();
    assert_eq!(count(&ended.stdout, "refused: MPI was finalised in this process"), 2, "{ended:?}");
    assert_eq!(count(&ended.stderr, "MPI"), 0, "{ended:?}");
}
