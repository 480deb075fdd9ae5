//! The integration tests of training with candle.

use std::process::ExitCode;

use unisono_testing::suite::{self, Module};

mod central;
mod colour;
#[cfg(feature = "mpi")]
mod examples;
mod metrics;
mod norm;
mod optimizers;
mod pipeline;
mod server;

fn main() -> ExitCode {
    suite::main(&[
        Module::new("central", central::tests),
        Module::new("colour", colour::tests),
        #[cfg(feature = "mpi")]
        Module::new("examples", examples::tests),
        Module::new("metrics", metrics::tests),
        Module::new("norm", norm::tests),
        Module::new("norm::runs", norm::runs::tests),
        Module::new("optimizers", optimizers::tests),
        Module::new("pipeline::builtin", pipeline::builtin::tests),
        Module::new("pipeline::stages", pipeline::stages::tests),
        Module::new("server", server::tests),
    ])
}
