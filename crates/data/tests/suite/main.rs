//! The integration tests of data sets.

use std::process::ExitCode;

use unisono_testing::suite::{self, Module};

mod remote;

fn main() -> ExitCode {
    suite::main(&[Module::with_roles("remote", remote::tests, remote::play)])
}
