//! Installs the library as a user would, and builds and runs programs in C, C++ and Fortran with it: over Open MPI, over MPICH, and
//! without MPI.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use tempfile::TempDir;
use unisono_testing::launch;

/// A build or a program that takes longer hangs.
const DEADLINE: Duration = Duration::from_secs(300);

type Test = Box<dyn Fn(&Installed) -> Result<(), Failed> + Send>;

/// The folder in which the library is installed, and programs are built.
struct Installed(TempDir);

fn main() -> ExitCode {
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    if arguments.list {
        return libtest_mimic::run(&arguments, trials(&Arc::new(Installed(tempfile::tempdir().unwrap()))))
            .exit_code();
    }
    libtest_mimic::run(&arguments, trials(&Arc::new(Installed::new()))).exit_code()
}

fn trials(installed: &Arc<Installed>) -> Vec<Trial> {
    let trial = |name: String, test: Test| {
        let installed = Arc::clone(installed);
        Trial::test(name, move || test(&installed))
    };
    let mut trials = Vec::new();
    for ranks in 1..=4 {
        trials.push(trial(
            format!("every function, {ranks} ranks"),
            Box::new(move |all| everything(all, &[], ranks, LAUNCHED)),
        ));
    }
    trials.push(trial(
        "every function, static library".into(),
        Box::new(|all| everything(all, &[STATIC], 2, LAUNCHED)),
    ));
    trials.push(trial(
        "every function, address sanitizer".into(),
        Box::new(|all| everything(all, &["-fsanitize=address"], 2, LAUNCHED)),
    ));
    trials.push(trial(
        "every function, by a key-value store".into(),
        Box::new(|all| everything(all, &[], 3, "STORE")),
    ));
    trials.push(trial(
        "every function, two nodes".into(),
        Box::new(|all| {
            let nodes = [("UNISONO_NETWORK", "tcp"), ("UNISONO_NODES", "2,1")];
            everything_with(all, &[], 3, LAUNCHED, &nodes)
        }),
    ));
    for way in ["blocking", "non-blocking"] {
        trials.push(trial(format!("a rank is killed, {way}"), Box::new(move |all| killed(all, way))));
    }
    trials.push(trial("the example without MPI".into(), Box::new(without_mpi)));
    trials.push(trial("Fortran without MPI".into(), Box::new(fortran)));
    trials.push(trial("threads in C++".into(), Box::new(threads)));
    for mpi in ["openmpi", "mpich"] {
        trials.push(trial(
            format!("C over {mpi}"),
            Box::new(move |all| with_mpi(all, mpi, "mpicc", "with_mpi.c", &C)),
        ));
        trials.push(trial(
            format!("Fortran over {mpi}"),
            Box::new(move |all| with_mpi(all, mpi, "mpif90", "with_mpi.f90", &FORTRAN)),
        ));
    }
    trials.push(trial("no MPI is linked".into(), Box::new(no_mpi_is_linked)));
    trials
}

/// The variable of the folder in which launched ranks find each other; in `STORE`, the program has a key-value store of its own.
const LAUNCHED: &str = "UNISONO_BOOTSTRAP_DIR";
/// Links the static library; no option of a compiler's.
const STATIC: &str = "static";
const C: [&str; 5] = ["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror"];
const CPP: [&str; 5] = ["-std=c++17", "-pedantic", "-Wall", "-Wextra", "-Werror"];
// What an MPI's own `mpif.h` declares and a program does not use is no mistake of the program's.
const FORTRAN: [&str; 1] = ["-Wall"];
const STRICT_FORTRAN: [&str; 5] = ["-std=f2008", "-pedantic", "-Wall", "-Wextra", "-Werror"];

impl Installed {
    fn new() -> Self {
        let installed = Self(tempfile::tempdir().unwrap());
        let mut install = Command::new(root().join("scripts/install-c"));
        let (target, profile) = launch::target_and_profile();
        install
            .arg("--prefix")
            .arg(installed.0.path())
            .args(["--profile", &profile])
            .env("CARGO_TARGET_DIR", target);
        launch::run(install, DEADLINE).expect_success();
        installed
    }

    fn lib(&self) -> PathBuf {
        self.0.path().join("lib")
    }

    /// What pkg-config answers.
    fn flags(&self, which: &[&str]) -> Vec<String> {
        let mut pkg_config = Command::new("pkg-config");
        pkg_config.args(which).arg("unisono").env("PKG_CONFIG_PATH", self.lib().join("pkgconfig"));
        let flags = launch::run(pkg_config, DEADLINE).expect_success().stdout;
        flags.split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles a program; returns its path.
    fn build(&self, compiler: &str, source: &Path, options: &[&str]) -> String {
        let program = self.0.path().join(source.file_name().unwrap()).with_extension(compiler);
        let mut command = Command::new(compiler);
        command.args(options.iter().filter(|option| **option != STATIC));
        if source.extension().is_some_and(|extension| extension == "f90") {
            command.arg("-J").arg(self.0.path()).arg(self.0.path().join("share/unisono/unisono.f90"));
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

fn everything(installed: &Installed, options: &[&str], ranks: usize, meet_in: &str) -> Result<(), Failed> {
    everything_with(installed, options, ranks, meet_in, &[])
}

fn everything_with(
    installed: &Installed,
    options: &[&str],
    ranks: usize,
    meet_in: &str,
    settings: &[(&str, &str)],
) -> Result<(), Failed> {
    let program =
        installed.build("cc", &source("tests/everything.c"), &[&C[..], &["-pedantic"], options].concat());
    let mut command = launch::processes(ranks, &program);
    let folder = tempfile::tempdir()?;
    command.env(meet_in, folder.path()).env("UNISONO_WARNINGS", "off").envs(settings.iter().copied());
    let ended = launch::run(command, DEADLINE).expect_success();
    assert_eq!(ended.stdout.matches(&format!("of {ranks}: all right\n")).count(), ranks, "{ended:?}");
    Ok(())
}

/// The library starts no thread, and the others get an error soon.
fn killed(installed: &Installed, way: &str) -> Result<(), Failed> {
    let options = [&C[..], &["-pedantic"]].concat();
    let program = installed.build("cc", &source("tests/embedded.c"), &options);
    let folder = tempfile::tempdir()?;
    let mut command = launch::processes(3, &program);
    command.arg(way).env(LAUNCHED, folder.path()).env("UNISONO_WARNINGS", "off");
    let ended = launch::run(command, DEADLINE);
    assert_eq!(ended.status.code(), Some(128 + 9), "{ended:?}");
    assert_eq!(ended.stdout.matches("an error after ").count(), 2, "{ended:?}");
    Ok(())
}

fn without_mpi(installed: &Installed) -> Result<(), Failed> {
    let program = installed.build("cc", &source("examples/without_mpi.c"), &C);
    let folder = tempfile::tempdir()?;
    let mut command = launch::processes(2, &program);
    command.env("UNISONO_BOOTSTRAP_DIR", folder.path());
    let stdout = launch::run(command, DEADLINE).expect_success().stdout;
    assert!(stdout.contains("rank 0 of 2: 0.5\n") && stdout.contains("rank 1 of 2: 0.5\n"), "{stdout}");
    assert_eq!(launch::run(Command::new(&program), DEADLINE).expect_success().stdout, "rank 0 of 1: 0\n");
    Ok(())
}

fn fortran(installed: &Installed) -> Result<(), Failed> {
    let program = installed.build("gfortran", &source("tests/everything.f90"), &STRICT_FORTRAN);
    let folder = tempfile::tempdir()?;
    let mut command = launch::processes(2, &program);
    command.env(LAUNCHED, folder.path()).env("UNISONO_WARNINGS", "off");
    let stdout = launch::run(command, DEADLINE).expect_success().stdout;
    assert_eq!(stdout.matches("all right").count(), 2, "{stdout}");
    Ok(())
}

fn threads(installed: &Installed) -> Result<(), Failed> {
    let program =
        installed.build("c++", &source("examples/threads.cpp"), &[&CPP[..], &["-pthread"]].concat());
    let stdout = launch::run(Command::new(program), DEADLINE).expect_success().stdout;
    assert_eq!(stdout, "every thread has the largest value\n");
    Ok(())
}

fn with_mpi(
    installed: &Installed,
    mpi: &str,
    compiler: &str,
    example: &str,
    options: &[&str],
) -> Result<(), Failed> {
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
    Ok(())
}

/// One library serves programs over any MPI.
fn no_mpi_is_linked(installed: &Installed) -> Result<(), Failed> {
    let mut ldd = Command::new("ldd");
    ldd.arg(installed.lib().join("libunisono.so"));
    let linked = launch::run(ldd, DEADLINE).expect_success().stdout;
    assert!(!linked.contains("libmpi") && linked.contains("libc.so"), "{linked}");
    Ok(())
}
