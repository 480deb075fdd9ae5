//! The integration tests of the crate. This program launches itself: without a role it is the test runner, and with a role it is a
//! rank.

use std::process::ExitCode;

use unisono_testing::suite::{self, Module};

mod processes;

fn main() -> ExitCode {
    suite::main(&[Module::with_roles("processes", processes::tests, processes::play)])
}
