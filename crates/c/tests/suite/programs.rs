//! Installs the library as a user would, and builds and runs programs in C, C++ and Fortran with it: over Open MPI, over MPICH, and
//! without MPI.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use unisono_testing::suite::Test;
use unisono_testing::{launch, shared, stand_ins};

/// The time after which a build or a program counts as hanging.
const DEADLINE: Duration = Duration::from_secs(300);

/// The folder in which the library is installed, and the folder of a test's programs.
struct Installed {
    prefix: PathBuf,
    programs: TempDir,
}

pub(crate) fn tests() -> Vec<Test> {
    let test = |name: String, run: fn(&Installed)| Test::new(name, move || run(&Installed::new()));
    let mut tests: Vec<_> = (1..=4)
        .map(|ranks| {
            let run = move || everything(&Installed::new(), &[], ranks, LAUNCHED);
            Test::new(format!("every_function_runs_on_{ranks}_ranks"), run)
        })
        .collect();
    tests.extend([
        test("every_function_runs_with_the_static_library".into(), |all| {
            everything(all, &[STATIC], 2, LAUNCHED);
        }),
        test("every_function_runs_with_the_address_sanitizer".into(), |all| {
            everything(all, &["-fsanitize=address"], 2, LAUNCHED);
        }),
        test("every_function_runs_by_a_key_value_store".into(), |all| everything(all, &[], 3, "STORE")),
        test("every_function_runs_on_two_nodes".into(), |all| {
            let nodes = [("UNISONO_NETWORK", "tcp"), ("UNISONO_NODES", "2,1")];
            everything_with(all, &[], 3, LAUNCHED, &nodes);
        }),
        test("the_others_get_an_error_when_a_rank_is_killed_in_a_call".into(), |all| killed(all, "blocking")),
        test("the_others_get_an_error_when_a_rank_is_killed_beside_a_call".into(), |all| {
            killed(all, "non-blocking");
        }),
        test("the_example_runs_without_mpi".into(), without_mpi),
        test("fortran_runs_without_mpi".into(), fortran),
        test("arrays_on_gpus_are_reduced_on_their_streams".into(), gpus),
        test("threads_run_in_cpp".into(), threads),
        test("no_mpi_is_linked".into(), no_mpi_is_linked),
    ]);
    for mpi in ["openmpi", "mpich"] {
        let c = move || with_mpi(&Installed::new(), mpi, "mpicc", "with_mpi.c", &C);
        let fortran = move || with_mpi(&Installed::new(), mpi, "mpif90", "with_mpi.f90", &FORTRAN);
        tests.push(Test::new(format!("c_runs_over_{mpi}"), c));
        tests.push(Test::new(format!("fortran_runs_over_{mpi}"), fortran));
    }
    tests
}

/// The variable with the bootstrap folder of launched ranks. With `STORE` instead, the program has its own key-value store.
const LAUNCHED: &str = "UNISONO_BOOTSTRAP_DIR";
/// Links the static library. It is not a compiler option.
const STATIC: &str = "static";
const C: [&str; 5] = ["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror"];
const CPP: [&str; 5] = ["-std=c++17", "-pedantic", "-Wall", "-Wextra", "-Werror"];
// Less strict, since a program does not use all declarations of an MPI's `mpif.h`.
const FORTRAN: [&str; 1] = ["-Wall"];
const STRICT_FORTRAN: [&str; 5] = ["-std=f2008", "-pedantic", "-Wall", "-Wextra", "-Werror"];

impl Installed {
    fn new() -> Self {
        let prefix = shared::folder("library", |prefix| {
            let mut install = Command::new(root().join("scripts/install-c"));
            let (target, profile) = launch::target_and_profile();
            install.arg("--prefix").arg(prefix).args([
                "--profile",
                &profile,
                "--with",
                launch::SAME_FEATURES,
            ]);
            install.env("CARGO_TARGET_DIR", target);
            launch::run(install, DEADLINE).expect_success();
        });
        Self { prefix, programs: tempfile::tempdir().unwrap() }
    }

    fn lib(&self) -> PathBuf {
        self.prefix.join("lib")
    }

    /// Returns the flags that pkg-config prints.
    fn flags(&self, which: &[&str]) -> Vec<String> {
        let mut pkg_config = Command::new("pkg-config");
        pkg_config.args(which).arg("unisono").env("PKG_CONFIG_PATH", self.lib().join("pkgconfig"));
        let flags = launch::run(pkg_config, DEADLINE).expect_success().stdout;
        flags.split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles a program; returns its path.
    fn build(&self, compiler: &str, source: &Path, options: &[&str]) -> String {
        let program = self.programs.path().join(source.file_name().unwrap()).with_extension(compiler);
        let mut command = Command::new(compiler);
        command.args(options.iter().filter(|option| **option != STATIC));
        if source.extension().is_some_and(|extension| extension == "f90") {
            command.arg("-J").arg(self.programs.path()).arg(self.prefix.join("share/unisono/unisono.f90"));
        }
        command.arg(source).arg("-o").arg(&program);
        command.args(self.flags(&["--cflags"]));
        if options.contains(&STATIC) {
            command.arg(self.lib().join("libunisono.a")).args(["-lpthread", "-ldl", "-lm"]);
        } else {
            command.args(self.flags(&["--libs"])).arg(format!("-Wl,-rpath,{}", self.lib().display()));
        }
        launch::run(command, DEADLINE).expect_success();
        program.to_str().expect("a path in UTF-8").to_owned()
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn everything(installed: &Installed, options: &[&str], ranks: usize, meet_in: &str) {
    everything_with(installed, options, ranks, meet_in, &[]);
}

fn everything_with(
    installed: &Installed,
    options: &[&str],
    ranks: usize,
    meet_in: &str,
    settings: &[(&str, &str)],
) {
    let program =
        installed.build("cc", &source("tests/everything.c"), &[&C[..], &["-pedantic"], options].concat());
    let mut command = launch::processes(ranks, &program);
    let folder = tempfile::tempdir().unwrap();
    command.env(meet_in, folder.path()).env("UNISONO_WARNINGS", "off").envs(settings.iter().copied());
    let ended = launch::run(command, DEADLINE).expect_success();
    assert_eq!(ended.stdout.matches(&format!("of {ranks}: all right\n")).count(), ranks, "{ended:?}");
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
}

/// Checks that the library starts no thread, and that the others soon get an error.
fn killed(installed: &Installed, way: &str) {
    let options = [&C[..], &["-pedantic"]].concat();
    let program = installed.build("cc", &source("tests/embedded.c"), &options);
    let folder = tempfile::tempdir().unwrap();
    let mut command = launch::processes(3, &program);
    command.arg(way).env(LAUNCHED, folder.path()).env("UNISONO_WARNINGS", "off");
    let ended = launch::run(command, DEADLINE);
    assert_eq!(ended.status.code(), Some(128 + 9), "{ended:?}");
    assert_eq!(ended.stdout.matches("an error after ").count(), 2, "{ended:?}");
}

fn without_mpi(installed: &Installed) {
    let program = installed.build("cc", &source("examples/without_mpi.c"), &C);
    let folder = tempfile::tempdir().unwrap();
    let mut command = launch::processes(2, &program);
    command.env("UNISONO_BOOTSTRAP_DIR", folder.path());
    let stdout = launch::run(command, DEADLINE).expect_success().stdout;
    assert!(stdout.contains("rank 0 of 2: 0.5\n") && stdout.contains("rank 1 of 2: 0.5\n"), "{stdout}");
    assert_eq!(launch::run(Command::new(&program), DEADLINE).expect_success().stdout, "rank 0 of 1: 0\n");
}

fn fortran(installed: &Installed) {
    let program = installed.build("gfortran", &source("tests/everything.f90"), &STRICT_FORTRAN);
    let folder = tempfile::tempdir().unwrap();
    let mut command = launch::processes(2, &program);
    command.env(LAUNCHED, folder.path()).env("UNISONO_WARNINGS", "off");
    let stdout = launch::run(command, DEADLINE).expect_success().stdout;
    assert_eq!(stdout.matches("all right").count(), 2, "{stdout}");
}

fn threads(installed: &Installed) {
    let program =
        installed.build("c++", &source("examples/threads.cpp"), &[&CPP[..], &["-pthread"]].concat());
    let stdout = launch::run(Command::new(program), DEADLINE).expect_success().stdout;
    assert_eq!(stdout, "every thread has the largest value\n");
}

/// Runs over stand-ins for the CUDA driver and NCCL, with a GPU for each rank.
fn gpus(installed: &Installed) {
    let program = installed.build("cc", &source("tests/gpu.c"), &[&C[..], &["-pedantic", "-ldl"]].concat());
    for ranks in [1, 2, 3] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = launch::processes(ranks, &program);
        command.env(LAUNCHED, folder.path()).env("UNISONO_WARNINGS", "off");
        command.env("STAND_IN_DEVICES", "4").envs(stand_ins::environment());
        let stdout = launch::run(command, DEADLINE).expect_success().stdout;
        assert_eq!(stdout.matches("all right").count(), ranks, "{stdout}");
    }
}

fn with_mpi(installed: &Installed, mpi: &str, compiler: &str, example: &str, options: &[&str]) {
    let program = installed.build(&format!("{compiler}.{mpi}"), &source("examples").join(example), options);
    let mut command = Command::new(format!("mpirun.{mpi}"));
    command.args(["-n", "3"]).env("UNISONO_WARNINGS", "off");
    if mpi == "openmpi" {
        command.arg("--oversubscribe");
        command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    }
    command.arg(&program);
    let stdout = launch::run(command, DEADLINE).expect_success().stdout;
    assert_eq!(stdout.matches(" of 3: ").count(), 3, "{stdout}");
}

/// Checks that no MPI is linked, since one library serves programs over any MPI.
fn no_mpi_is_linked(installed: &Installed) {
    let mut ldd = Command::new("ldd");
    ldd.arg(installed.lib().join("libunisono.so"));
    let linked = launch::run(ldd, DEADLINE).expect_success().stdout;
    assert!(!linked.contains("libmpi") && linked.contains("libc.so"), "{linked}");
}
