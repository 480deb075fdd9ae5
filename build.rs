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

/// Binds NCCL: the machine's `nccl.h` or, if there is none or it is too old, Unisono's copy.
#[cfg(feature = "nccl")]
mod nccl {
    use std::env;
    use std::fmt;
    use std::fs;
    use std::path::{Path, PathBuf};

    /// The newest version in `functions.rs`.
    const OLDEST: Version = Version([2, 14, 0]);

    const OWN: &str = "src/nccl/header";
    const CUDA: &str = "src/nccl/header/cuda";

    /// The variable for the user's choice of a folder; no other is then tried.
    const GIVEN: &str = "NCCL_INCLUDE_DIR";
    const VARIABLES: [&str; 5] = [GIVEN, "NCCL_HOME", "CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV"];

    #[derive(PartialEq, Eq, PartialOrd, Ord)]
    struct Version([u32; 3]);

    impl fmt::Display for Version {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let [major, minor, patch] = self.0;
            write!(f, "{major}.{minor}.{patch}")
        }
    }

    pub(super) fn build() {
        println!("cargo:rerun-if-changed={OWN}");
        println!("cargo:rerun-if-changed=src/nccl/functions.rs");
        println!("cargo:rerun-if-changed=src/nccl/bind.rs");
        for name in VARIABLES {
            println!("cargo:rerun-if-env-changed={name}");
        }
        let (header, bindings) = given().or_else(found).unwrap_or_else(own);
        println!("cargo:rustc-env=UNISONO_NCCL_HEADER={header}");
        let output = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("nccl.rs");
        fs::write(&output, bindings).unwrap_or_else(|error| panic!("{}: {error}", output.display()));
    }

    /// Returns the header that the user chose; no other is tried.
    fn given() -> Option<(String, String)> {
        let folder = PathBuf::from(env::var_os(GIVEN)?);
        let bound = bound(&folder).unwrap_or_else(|reason| {
            panic!("{GIVEN} is {}, but {reason}; unset it, and a header is searched for", folder.display())
        });
        Some(bound)
    }

    /// Returns the first usable header on the machine. Unusable ones cause a warning.
    fn found() -> Option<(String, String)> {
        let folders = folders().into_iter().filter(|folder| folder.join("nccl.h").is_file());
        for folder in folders {
            match bound(&folder) {
                Ok(bound) => return Some(bound),
                Err(reason) => println!("cargo:warning={reason}: it is passed over"),
            }
        }
        None
    }

    fn own() -> (String, String) {
        let (_, bindings) = bound(Path::new(OWN)).expect("our own header is one that we can use");
        ("Unisono's own header".to_owned(), bindings)
    }

    /// Returns the folders in which NCCL's header may be installed.
    fn folders() -> Vec<PathBuf> {
        let below = |name| env::var_os(name).map(|home| PathBuf::from(home).join("include"));
        let mut folders: Vec<PathBuf> = below("NCCL_HOME").into_iter().collect();
        folders.push(PathBuf::from("/usr/include"));
        folders.extend(["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(below));
        folders.push(PathBuf::from("/usr/local/cuda/include"));
        let libraries = env::var_os("VIRTUAL_ENV").map(|home| PathBuf::from(home).join("lib"));
        let pythons = libraries.and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten().flatten();
        let mut wheels: Vec<PathBuf> =
            pythons.map(|python| python.path().join("site-packages/nvidia/nccl/include")).collect();
        wheels.sort();
        folders.append(&mut wheels);
        folders
    }

    /// Returns the description of a header, and its bindings; or why it is unusable.
    fn bound(folder: &Path) -> Result<(String, String), String> {
        let header = folder.join("nccl.h");
        let text = fs::read_to_string(&header).map_err(|error| format!("{}: {error}", header.display()))?;
        println!("cargo:rerun-if-changed={}", header.display());
        let header = header.display();
        let version = version(&text).ok_or_else(|| format!("{header} does not say its version"))?;
        if version < OLDEST {
            return Err(format!(
                "{header} is of NCCL {version}, and {OLDEST} is the oldest that has what we call"
            ));
        }
        let bindings = super::bind::bind(folder, Path::new(CUDA))
            .map_err(|error| format!("{header} cannot be bound: {error}"))?;
        Ok((format!("{header} of NCCL {version}"), bindings))
    }

    fn version(text: &str) -> Option<Version> {
        let number = |name: &str| {
            let line =
                text.lines().find_map(|line| line.strip_prefix("#define ")?.trim().strip_prefix(name))?;
            line.trim().parse().ok()
        };
        Some(Version([number("NCCL_MAJOR")?, number("NCCL_MINOR")?, number("NCCL_PATCH")?]))
    }
}
