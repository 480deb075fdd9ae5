//! Compiles and binds C at build time: a value of MPI, and NCCL's header.

#[cfg(feature = "mpi")]
#[path = "build/mpi.rs"]
mod mpi;
#[cfg(feature = "nccl")]
#[path = "build/nccl.rs"]
mod nccl;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=build");
    #[cfg(feature = "mpi")]
    mpi::build();
    #[cfg(feature = "nccl")]
    nccl::build();
}
