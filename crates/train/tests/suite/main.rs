//! The integration tests of the trainer, except for the fuzzed readers, which count allocations.

use std::process::ExitCode;

use unisono_testing::suite::{self, Module};

mod checkpoint;
mod mirror;
mod tensorboard;

fn main() -> ExitCode {
    suite::main(&[
        Module::with_roles("checkpoint", checkpoint::tests, checkpoint::play),
        Module::new("mirror", mirror::tests),
        Module::new("mirror::across", mirror::across::tests),
        Module::new("mirror::callback", mirror::callback::tests),
        Module::new("mirror::compressed", mirror::compressed::tests),
        Module::new("mirror::diverges", mirror::diverges::tests),
        Module::new("mirror::local", mirror::local::tests),
        Module::new("mirror::ranks", mirror::ranks::tests),
        Module::new("mirror::sharded", mirror::sharded::tests),
        Module::new("mirror::stop", mirror::stop::tests),
        Module::new("mirror::trainer", mirror::trainer::tests),
        Module::new("tensorboard", tensorboard::tests),
    ])
}
