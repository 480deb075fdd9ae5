//! One integration test binary per crate. It runs the tests of all its modules, and is also the program of the ranks that they
//! start.
//!
//! ```ignore
//! mod mpi; // fn play(role: &str) -> ExitCode, fn tests() -> Vec<Test>
//! mod tidy; // fn tests() -> Vec<Test> { unisono_testing::tests![no_file_is_long, pure_crates_are_pure] }
//!
//! fn main() -> ExitCode {
//!     suite::main(&[Module::with_roles("mpi", mpi::tests, mpi::play), Module::new("tidy", tidy::tests)])
//! }
//! ```
//!
//! The manifest says `harness = false`. A test is named `MODULE::NAME`. A test that measures time is named `timed::MODULE::NAME`,
//! so that a filter of nextest runs it alone. Under nextest every test runs in a separate process, and under `cargo test` one after
//! another.

use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};

/// The variable that makes this program a rank with a role: `MODULE::ROLE`.
pub const ROLE: &str = "UNISONO_TEST_ROLE";

/// Names the constants from which algorithms are chosen. Ranks on a busy machine would measure others in each run, and sums that are added in another
/// order have other bits.
const TUNING: &str = "UNISONO_TUNING";

/// Returns whether this run is the deep suite, which has the tests marked as [`Test::deep`]. `scripts/test --all` requests it.
pub fn is_deep() -> bool {
    std::env::var("UNISONO_TEST_DEEP").is_ok_and(|value| value == "1")
}

/// A test of a module.
pub struct Test {
    name: String,
    run: Box<dyn FnOnce() + Send>,
    is_deep: bool,
    is_timed: bool,
    obstacle: fn() -> Option<String>,
}

impl std::fmt::Debug for Test {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Test").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Test {
    /// Returns a test that fails if the function panics.
    pub fn new(name: impl Into<String>, run: impl FnOnce() + Send + 'static) -> Self {
        let obstacle = || None;
        Self { name: name.into(), run: Box::new(run), is_deep: false, is_timed: false, obstacle }
    }

    /// Marks a test of the deep suite. Any other run reports it as ignored.
    pub fn deep(self) -> Self {
        Self { is_deep: true, ..self }
    }

    /// Marks a test that measures time and must run alone.
    pub fn timed(self) -> Self {
        Self { is_timed: true, ..self }
    }

    /// Reports this test as ignored if the function returns an obstacle, which is printed.
    pub fn unless(self, obstacle: fn() -> Option<String>) -> Self {
        Self { obstacle, ..self }
    }

    fn into_trial(self, module: &str, arguments: &Arguments) -> Trial {
        let name = format!("{}{module}::{}", if self.is_timed { "timed::" } else { "" }, self.name);
        // An obstacle may take a second to detect, and nextest starts this program for each test.
        let is_other = arguments.exact && arguments.filter.as_ref().is_some_and(|filter| *filter != name);
        let is_left_to_deep = self.is_deep && !is_deep();
        let obstacle = if is_other || is_left_to_deep { None } else { (self.obstacle)() };
        if let Some(obstacle) = &obstacle {
            eprintln!("ignored: {name}: {obstacle}");
        }
        let is_ignored = is_left_to_deep || obstacle.is_some();
        let run = move || {
            if let Some(obstacle) = obstacle {
                return Err(obstacle.into());
            }
            (self.run)();
            Ok(())
        };
        Trial::test(name, run).with_ignored_flag(is_ignored)
    }
}

/// Creates tests from functions without parameters. A function that is in no list is dead code, which the compiler reports.
#[macro_export]
macro_rules! tests {
    ($($function:ident),* $(,)?) => { vec![$($crate::suite::Test::new(stringify!($function), $function)),*] };
}

/// A module of tests, and the roles of the ranks that they start.
#[derive(Debug)]
pub struct Module {
    name: &'static str,
    tests: fn() -> Vec<Test>,
    play: fn(&str) -> ExitCode,
}

impl Module {
    /// Returns a module whose tests start no ranks.
    pub const fn new(name: &'static str, tests: fn() -> Vec<Test>) -> Self {
        Self { name, tests, play: |role| panic!("this module has no roles, got `{role}`") }
    }

    /// Returns a module whose tests start this program again as ranks, which play a role.
    pub const fn with_roles(
        name: &'static str,
        tests: fn() -> Vec<Test>,
        play: fn(&str) -> ExitCode,
    ) -> Self {
        Self { name, tests, play }
    }
}

/// Makes a command start this program as a rank with a role of a module.
pub fn play<'a>(command: &'a mut Command, module: &str, role: &str) -> &'a mut Command {
    command.env(ROLE, format!("{module}::{role}"))
}

/// Plays the role of the environment, or runs the tests that the arguments select.
///
/// # Panics
/// If the role is of no module.
pub fn main(modules: &[Module]) -> ExitCode {
    if std::env::var_os(TUNING).is_none() {
        // SAFETY: this process has no other thread yet.
        unsafe { std::env::set_var(TUNING, "default") };
    }
    if let Ok(role) = std::env::var(ROLE) {
        let (module, role) = role.split_once("::").expect("a role is MODULE::ROLE");
        let module = modules.iter().find(|other| other.name == module);
        return (module.unwrap_or_else(|| panic!("no module has the role `{role}`")).play)(role);
    }
    let mut arguments = Arguments::from_args();
    // Most tests have more ranks than cores.
    arguments.test_threads = arguments.test_threads.or(Some(1));
    let trials = modules.iter().flat_map(|module| {
        (module.tests)().into_iter().map(|test| test.into_trial(module.name, &arguments)).collect::<Vec<_>>()
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}
