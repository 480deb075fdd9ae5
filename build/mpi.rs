//! Compiles what Rust's bindings of MPI lack: the value of `MPI_IN_PLACE`, a macro that differs between MPIs, and the MPI
//! version of the header.

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
