//! The integration tests of the library. This program launches itself: without a role it is the test runner, and with a role it is
//! a rank.

use std::process::ExitCode;

use unisono_testing::suite::{self, Module};

#[cfg(feature = "mpi")]
mod chaos;
mod common;
mod counts;
mod deadlines;
#[cfg(all(feature = "mpi", feature = "nccl"))]
mod device;
mod documents;
mod embedded;
#[cfg(feature = "mpi")]
mod examples;
#[cfg(feature = "mpi")]
mod failures;
mod grow;
mod in_flight;
mod invalid;
mod layers;
#[cfg(feature = "mpi")]
mod mismatch;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(feature = "nccl")]
mod nccl;
mod observe;
mod plans;
mod point_to_point;
mod processes;
mod shrink;
#[cfg(feature = "mpi")]
mod soak;
#[cfg(feature = "nccl")]
mod stand_ins;
mod tags;
mod threads;
mod tidy;
#[cfg(feature = "mpi")]
mod two_nodes;

fn main() -> ExitCode {
    suite::main(&[
        #[cfg(feature = "mpi")]
        Module::with_roles("chaos", chaos::tests, chaos::play),
        Module::new("counts", counts::tests),
        Module::new("deadlines", deadlines::tests),
        #[cfg(all(feature = "mpi", feature = "nccl"))]
        Module::with_roles("device", device::tests, device::play),
        Module::new("documents", documents::tests),
        Module::with_roles("embedded", embedded::tests, embedded::play),
        #[cfg(feature = "mpi")]
        Module::new("examples", examples::tests),
        #[cfg(feature = "mpi")]
        Module::with_roles("failures", failures::tests, failures::play),
        Module::new("layers", layers::tests),
        Module::with_roles("grow", grow::tests, grow::play),
        Module::new("in_flight", in_flight::tests),
        Module::new("invalid", invalid::tests),
        #[cfg(feature = "mpi")]
        Module::with_roles("mismatch", mismatch::tests, mismatch::play),
        #[cfg(feature = "mpi")]
        Module::with_roles("mpi", mpi::tests, mpi::play),
        #[cfg(feature = "nccl")]
        Module::with_roles("nccl", nccl::tests, nccl::play),
        Module::with_roles("observe", observe::tests, observe::play),
        Module::new("plans", plans::tests),
        Module::new("point_to_point", point_to_point::tests),
        Module::with_roles("processes", processes::tests, processes::play),
        Module::with_roles("shrink", shrink::tests, shrink::play),
        #[cfg(feature = "mpi")]
        Module::with_roles("soak", soak::tests, soak::play),
        #[cfg(feature = "nccl")]
        Module::with_roles("stand_ins", stand_ins::tests, stand_ins::play),
        Module::new("threads", threads::tests),
        Module::new("tags", tags::tests),
        Module::new("tidy", tidy::tests),
        #[cfg(feature = "mpi")]
        Module::with_roles("two_nodes", two_nodes::tests, two_nodes::play),
    ])
}
