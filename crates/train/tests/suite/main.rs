//! The integration tests of the trainer, but for the fuzzed readers, which count what they allocate.

use std::process::ExitCode;

use unisono_testing::suite::{self, Module};

#[cfg(feature = "candle")]
mod central;
mod checkpoint;
#[cfg(feature = "candle")]
mod colour;
#[cfg(all(feature = "candle", feature = "mpi"))]
mod examples;
#[cfg(feature = "candle")]
mod metrics;
mod mirror;
#[cfg(feature = "candle")]
mod norm;
#[cfg(feature = "candle")]
mod optimizers;
#[cfg(feature = "candle")]
mod pipeline;
#[cfg(feature = "candle")]
mod server;
mod tensorboard;

fn main() -> ExitCode {
    suite::main(&[
        Module::with_roles("checkpoint", checkpoint::tests, checkpoint::play),
        Module::new("mirror", mirror::tests),
        Module::new("mirror::across", mirror::across::tests),
        Module::new("mirror::compressed", mirror::compressed::tests),
        Module::new("mirror::diverges", mirror::diverges::tests),
        Module::new("mirror::local", mirror::local::tests),
        Module::new("mirror::ranks", mirror::ranks::tests),
        Module::new("mirror::sharded", mirror::sharded::tests),
        Module::new("mirror::stop", mirror::stop::tests),
        Module::new("mirror::trainer", mirror::trainer::tests),
        Module::new("tensorboard", tensorboard::tests),
        #[cfg(feature = "candle")]
        Module::new("central", central::tests),
        #[cfg(feature = "candle")]
        Module::new("colour", colour::tests),
        #[cfg(all(feature = "candle", feature = "mpi"))]
        Module::new("examples", examples::tests),
        #[cfg(feature = "candle")]
        Module::new("metrics", metrics::tests),
        #[cfg(feature = "candle")]
        Module::new("norm", norm::tests),
        #[cfg(feature = "candle")]
        Module::new("norm::runs", norm::runs::tests),
        #[cfg(feature = "candle")]
        Module::new("optimizers", optimizers::tests),
        #[cfg(feature = "candle")]
        Module::new("pipeline::builtin", pipeline::builtin::tests),
        #[cfg(feature = "candle")]
        Module::new("pipeline::stages", pipeline::stages::tests),
        #[cfg(feature = "candle")]
        Module::new("server", server::tests),
    ])
}
