//! Tests of the stand-ins for the CUDA driver and NCCL, and of copies to a GPU over them. This program launches itself: every
//! case is a separate process, which loads the stand-ins.

use std::process::{Command, ExitCode};
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use unisono_testing::launch;

mod cuda;
mod host_to_device;
mod library;
mod nccl;
mod ranks;
#[path = "../common/stand_ins.rs"]
#[allow(unreachable_pub, reason = "other tests use it too")]
mod stand_ins;

/// The variable that tells a process its case.
const CASE: &str = "UNISONO_TEST_CASE";
const DEADLINE: Duration = Duration::from_secs(120);

/// The body of a case, and the settings of the stand-ins.
struct Case {
    name: &'static str,
    environment: &'static [(&'static str, &'static str)],
    body: fn(),
}

/// A case.
const fn case(name: &'static str, environment: &'static [(&'static str, &'static str)], body: fn()) -> Case {
    Case { name, environment, body }
}

fn main() -> ExitCode {
    let cases = || cuda::CASES.iter().chain(host_to_device::CASES).chain(nccl::CASES).chain(ranks::CASES);
    if let Ok(name) = std::env::var(CASE) {
        if name == ranks::RANK {
            ranks::process();
        } else {
            (cases().find(|case| case.name == name).expect("the case is one of ours").body)();
        }
        return ExitCode::SUCCESS;
    }
    let trial = |case: &'static Case| {
        Trial::test(case.name, || {
            launch::run(command(case.name, case.environment), DEADLINE).expect_success();
            Ok(())
        })
    };
    // One after the other: some cases measure times.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, cases().map(trial).collect()).exit_code()
}

/// The command that runs this program as a case.
fn command(case: &str, environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this test is a program"));
    command.env(CASE, case).envs(stand_ins::environment()).envs(environment.iter().copied());
    command
}
