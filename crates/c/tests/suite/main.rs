//! The integration tests of the library for C, C++ and Fortran.

use std::process::ExitCode;

use unisono_testing::suite::{self, Module};

mod fortran;
mod header;
mod programs;

fn main() -> ExitCode {
    suite::main(&[
        Module::new("fortran", fortran::tests),
        Module::new("header", header::tests),
        Module::new("programs", programs::tests),
    ])
}
