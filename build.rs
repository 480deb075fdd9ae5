//! Compiles and binds C at build time: a value of MPI, and NCCL's header.

#[cfg(feature = "nccl")]
#[path = "src/nccl/bind.rs"]
mod bind;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "mpi")]
    mpi::build();
    #[cfg(feature = "nccl")]
    nccl::build();
}

/// Compiles what Rust's bindings of MPI lack: the value of `MPI_IN_PLACE`, a macro that differs between MPIs, and the MPI
/// version of the header.
#[cfg(feature = "mpi")]
mod mpi {
    pub(super) fn build() {
        const SOURCE: &str = "src/transport/mpi/header.c";
        println!("cargo:rerun-if-changed={SOURCE}");
        println!("cargo:rerun-if-env-changed=MPICC");
        let Ok(library) = build_probe_mpi::probe() else {
            // The build script of `mpi-sys` probes in the same way, and reports all reasons.
            panic!("no MPI found; on Debian or Ubuntu: apt-get install libopenmpi-dev openmpi-bin");
        };
        let mut build = cc::Build::new();
        build.file(SOURCE).includes(&library.include_paths);
        if let Some(compiler) = library.mpicc {
            build.compiler(compiler);
        }
        build.compile("unisono_mpi_header");
    }
}

/// Binds the part of NCCL's header that Unisono calls. The library is loaded at run time, so the machine needs no header.
#[cfg(feature = "nccl")]
mod nccl {
    use std::path::Path;
    use std::{env, fs};

    pub(super) fn build() {
        for read in ["src/nccl/header", "src/nccl/functions.rs", "src/nccl/bind.rs"] {
            println!("cargo:rerun-if-changed={read}");
        }
        let header = Path::new("src/nccl/header");
        let bindings = super::bind::bind(header, &header.join("cuda")).expect("it is a header");
        let output = Path::new(&env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("nccl.rs");
        fs::write(&output, bindings).unwrap_or_else(|error| panic!("{}: {error}", output.display()));
    }
}
