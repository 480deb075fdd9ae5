//! Launches that are wrong: what is said, how often, and how soon they end. This program launches itself: without a role
//! it is the test runner, with one it is a rank.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

mod limits;
mod preload;
mod ranks;

use unisono_testing::launch::{self, Ended};

/// Tells a process that it is a rank, and what it does.
const ROLE: &str = "UNISONO_TEST_ROLE";
const DEADLINE: Duration = Duration::from_secs(60);
/// What is refused must be refused in a time that a person waits.
const SOON: Duration = Duration::from_secs(20);
/// A rank waits at least 20 s for the others to begin.
const PATIENT: Duration = Duration::from_secs(40);

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(ROLE) {
        return ranks::play(&role);
    }
    // One at a time: each has more ranks than there are cores.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let trials = [mismatches(), launchers(), preload::trials(), limits::trials()];
    libtest_mimic::run(&arguments, trials.into_iter().flatten().collect()).exit_code()
}

/// A test that may find that it cannot run here, and why.
fn trial(name: &str, test: impl FnOnce() -> Result<(), String> + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || -> Result<Completion, Failed> {
        Ok(test().map_or_else(Completion::ignored_with, |()| Completion::Completed))
    })
}

fn always(name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    trial(name, move || {
        test();
        Ok(())
    })
}

fn own_path() -> String {
    std::env::current_exe().expect("a program knows its path").to_str().expect("a path in UTF-8").to_owned()
}

/// Ranks of this program that play a role.
fn ranks(ranks: usize, role: &str) -> Command {
    let mut command = launch::mpirun(ranks, &own_path());
    command.env(ROLE, role);
    command
}

fn run(command: Command) -> Ended {
    launch::run(command, DEADLINE)
}

/// How often a text says something.
fn count(text: &str, said: &str) -> usize {
    text.matches(said).count()
}

/// The lines that we say, and not an MPI.
fn our_lines(ended: &Ended) -> Vec<&str> {
    ended.stderr.lines().filter(|line| line.starts_with("unisono: ")).collect()
}

/// Rank 0 as it should be, and rank 1 with another variable in its environment.
fn differing(name: &str, values: (&str, &str), role: &str) -> Ended {
    let mut command = ranks(1, role);
    let (program, set) = (own_path(), format!("{name}={}", values.1));
    command.env(name, values.0).args([":", "-n", "1", "env", &set, &program]);
    let started = Instant::now();
    let ended = run(command);
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    ended
}

/// Settings that one rank has otherwise.
fn mismatches() -> Vec<Trial> {
    let settings = [
        ("UNISONO_TRANSPORT", "auto", "mpi"),
        ("UNISONO_NODES", "1,1", "2"),
        ("UNISONO_ALGORITHM", "ring", "tree"),
        ("UNISONO_SEGMENT_BYTES", "128", "64"),
    ];
    let mut trials: Vec<_> = settings
        .into_iter()
        .map(|(name, one, other)| {
            always(&format!("{name} that differs is refused on both ranks"), move || {
                let ended = differing(name, (one, other), "start");
                assert!(!ended.status.success());
                let said = format!("{name} is {one} on rank 0 (");
                assert_eq!(count(&ended.stdout, &said), 2, "{}\n{}", ended.stdout, ended.stderr);
                assert_eq!(count(&ended.stdout, &format!("and {other} on rank 1 (")), 2, "{}", ended.stdout);
            })
        })
        .collect();
    trials.push(always("a setting of one rank that makes no sense is an error of both", || {
        let ended = differing("UNISONO_TRANSPORT", ("auto", "tcp"), "start");
        assert!(!ended.status.success());
        assert_eq!(count(&ended.stdout, "on rank 1 ("), 2, "{}\n{}", ended.stdout, ended.stderr);
        assert_eq!(count(&ended.stdout, "UNISONO_TRANSPORT is \"tcp\", and should be auto or mpi"), 2);
    }));
    trials.push(always("settings that may differ do", || {
        differing("UNISONO_TIMEOUT_S", ("100", "200"), "sum").expect_success();
        differing("UNISONO_WARNINGS", ("on", "off"), "sum").expect_success();
    }));
    trials
}

fn launchers() -> Vec<Trial> {
    vec![
        trial("another MPI's mpirun is refused, soon and with both names", foreign),
        trial(
            "under another MPI's mpirun the command says it once, and its doctor finds it",
            foreign_command,
        ),
        always("srun without PMI is refused, with what to say", srun_without_pmi),
        always("one process in a Slurm job of several is told so", alone_in_job),
        always("ranks that never begin are not waited for for ever", never_begun),
        always("more ranks than cores is said once, or not at all", more_ranks_than_cores),
        trial("ranks that are bound to one core are told so", bound_to_one_core),
        always("threads are not started by several processes", threads_under_a_launcher),
        always("MPI begins once, and a second world is refused", again),
    ]
}

/// The launcher of the MPI that this program was not built with.
fn foreign_mpirun(program: &str) -> Result<Command, String> {
    let (name, is_open_mpi) =
        if launch::is_open_mpi() { ("mpirun.mpich", false) } else { ("mpirun.openmpi", true) };
    if Command::new(name).arg("--version").output().is_err() {
        return Err(format!("there is no {name}: `scripts/setup --tests` installs it"));
    }
    let mut command = Command::new(name);
    command.args(["-n", "3"]);
    if is_open_mpi {
        command.arg("--oversubscribe");
        command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    }
    command.arg(program);
    Ok(command)
}

/// How the launcher that does not belong, and the library that does, are named.
fn foreign_names() -> (&'static str, &'static str) {
    if launch::is_open_mpi() {
        ("the mpirun of MPICH", "(Open MPI v")
    } else {
        ("Open MPI's mpirun", "(MPICH ")
    }
}

fn foreign() -> Result<(), String> {
    let mut command = foreign_mpirun(&own_path())?;
    command.env(ROLE, "start");
    let started = Instant::now();
    let ended = run(command);
    assert!(started.elapsed() < SOON && !ended.status.success(), "{:?}, {ended:?}", started.elapsed());
    // The launcher may end the others when the first has said it.
    let (launcher, library) = foreign_names();
    let line = ended.stdout.lines().find(|line| line.contains("sees a world of 1")).unwrap_or_default();
    assert!(line.contains(launcher) && line.contains(library) && line.contains("started 3"), "{ended:?}");
    assert_eq!(count(&ended.stdout, "has begun"), 0, "{ended:?}");
    Ok(())
}

fn foreign_command() -> Result<(), String> {
    let (launcher, _) = foreign_names();
    let mut bench = foreign_mpirun(env!("CARGO_BIN_EXE_unisono"))?;
    bench.args(["bench", "--bytes", "8"]);
    let ended = run(bench);
    assert_eq!((ended.status.code(), count(&ended.stderr, launcher)), (Some(2), 1), "{ended:?}");
    let mut doctor = foreign_mpirun(env!("CARGO_BIN_EXE_unisono"))?;
    doctor.arg("doctor");
    let ended = run(doctor);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert_eq!(count(&ended.stdout, "WRONG launch "), 1, "{ended:?}");
    for subject in ["ok    unisono ", "ok    MPI ", "ok    /dev/shm ", "processor "] {
        assert_eq!(count(&ended.stdout, subject), 1, "{subject} in {}", ended.stdout);
    }
    Ok(())
}

/// What Slurm leaves in the environment of a task.
fn slurm(command: &mut Command, variables: &[(&str, &str)]) {
    command.env("SLURM_JOB_ID", "7").envs(variables.iter().copied());
}

fn srun_without_pmi() {
    for rank in ["0", "3"] {
        let mut task = Command::new(own_path());
        task.env(ROLE, "start");
        slurm(&mut task, &[("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_PROCID", rank), ("SLURM_NTASKS", "4")]);
        let ended = run(task);
        assert!(!ended.status.success());
        let said = ["srun started 4 processes", "sees a world of 1", "`srun --mpi=pmi"];
        assert!(said.iter().all(|said| ended.stdout.contains(said)), "{ended:?}");
    }
}

fn alone_in_job() {
    let start = |variables: &[(&str, &str)]| {
        let mut script = Command::new(own_path());
        script.env(ROLE, "sum");
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

fn never_begun() {
    let mut command = ranks(1, "start");
    command.env("UNISONO_TIMEOUT_S", "3").args([":", "-n", "1", "sleep", "50"]);
    let started = Instant::now();
    let ended = run(command);
    assert!(started.elapsed() < PATIENT && !ended.status.success(), "{:?}, {ended:?}", started.elapsed());
    assert!(ended.stderr.contains("for all 2 ranks to begin"), "{ended:?}");
    assert_eq!(count(&ended.stderr, "this process gives up"), 1, "{ended:?}");
}

fn more_ranks_than_cores() {
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

/// Cores that the launcher leaves out do not count.
fn bound_to_one_core() -> Result<(), String> {
    if std::thread::available_parallelism().map_or(1, usize::from) == 1 {
        return Err("there is one core".to_owned());
    }
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
    Ok(())
}

fn threads_under_a_launcher() {
    let mut command = launch::mpirun(2, env!("CARGO_BIN_EXE_unisono"));
    command.args(["bench", "--threads", "2", "--bytes", "8"]);
    let ended = run(command);
    assert_eq!(ended.status.code(), Some(2), "{ended:?}");
    assert_eq!(
        count(&ended.stderr, "--threads 2 would start a separate world in each of the 2 launched processes"),
        1,
        "{ended:?}"
    );
}

fn again() {
    let ended = run(ranks(2, "again")).expect_success();
    assert_eq!(count(&ended.stdout, "refused: MPI was finalised in this process"), 2, "{ended:?}");
    assert_eq!(count(&ended.stderr, "MPI"), 0, "{ended:?}");
}
