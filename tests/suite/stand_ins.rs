//! Tests of the stand-ins for the CUDA driver and NCCL, and of copies to a GPU over them. Every case is a separate process, which
//! loads the stand-ins.

use std::process::{Command, ExitCode};
use std::time::Duration;

use unisono_testing::suite::{self, Test};
use unisono_testing::{launch, stand_ins};

mod cuda;
mod host_to_device;
mod library;
mod nccl;
mod ranks;

const DEADLINE: Duration = Duration::from_secs(120);

/// The body of a case, and the settings of the stand-ins.
struct Case {
    name: &'static str,
    environment: &'static [(&'static str, &'static str)],
    body: fn(),
    is_timed: bool,
}

impl Case {
    /// Marks a case that measures time and must run alone.
    const fn timed(self) -> Self {
        Self { is_timed: true, ..self }
    }

    fn run(&self) -> launch::Ended {
        launch::run(command(self.name, self.environment), DEADLINE)
    }
}

/// Returns a case.
const fn case(name: &'static str, environment: &'static [(&'static str, &'static str)], body: fn()) -> Case {
    Case { name, environment, body, is_timed: false }
}

const ALL: [(&str, &[Case]); 4] = [
    ("cuda", cuda::CASES),
    ("host to device", host_to_device::CASES),
    ("nccl", nccl::CASES),
    ("nccl's collectives", ranks::CASES),
];

pub(crate) fn play(name: &str) -> ExitCode {
    if name == ranks::RANK {
        ranks::process();
    } else {
        let mut cases = ALL.into_iter().flat_map(|(_, cases)| cases);
        (cases.find(|case| case.name == name).expect("the case exists").body)();
    }
    ExitCode::SUCCESS
}

/// Returns one test for all cases of a kind. It builds the stand-ins before the first case.
pub(crate) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for (kind, cases) in ALL {
        tests.push(Test::new(format!("every case of {kind}"), || {
            for case in cases.iter().filter(|case| !case.is_timed) {
                let ended = case.run();
                assert!(ended.status.success(), "`{}` failed: {ended}", case.name);
            }
        }));
        for case in cases.iter().filter(|case| case.is_timed) {
            tests.push(Test::new(case.name, || drop(case.run().expect_success())).timed());
        }
    }
    tests
}

/// Returns the command that runs this program as a case.
fn command(case: &str, environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(launch::this_program());
    suite::play(&mut command, "stand_ins", case).envs(stand_ins::environment());
    command.envs(environment.iter().copied());
    command
}
