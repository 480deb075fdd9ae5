//! `unisono accelerate`: runs an MPI program with a preloaded library that executes its collectives.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args as ClapArgs, ValueEnum};
use rustix::io::Errno;
use unisono::config::{ACCELERATE_REPORT, Launcher, PRELOAD, Starter, find_program, preloaded};

use super::family::code_of_unstarted;
use super::{Failure, is_reporter};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Print a report on rank 0 at the end: the number and the times of the calls by MPI and by Unisono
    #[arg(long)]
    report: bool,
    /// MPI implementation of the program [default: detected from the program and the launcher]
    #[arg(long, value_name = "FAMILY")]
    mpi: Option<Family>,
    /// Directory of the preloaded libraries [default: ../lib/unisono, relative to the directory of this command]
    #[arg(long, value_name = "FOLDER")]
    libraries: Option<PathBuf>,
    /// Program to run, and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// MPIs with the same binary interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Family {
    /// Open MPI
    Openmpi,
    /// MPICH, Intel MPI, MVAPICH and other libraries with MPICH's interface
    Mpich,
    /// Any MPI, for programs built with the standard ABI of MPI 5
    Abi,
}

impl Family {
    fn name(self) -> &'static str {
        match self {
            Self::Openmpi => "Open MPI",
            Self::Mpich => "MPICH",
            Self::Abi => "MPI's standard ABI",
        }
    }

    fn library(self) -> String {
        let value = self.to_possible_value().expect("it has a name");
        format!("libunisono-preload-{}.so", value.get_name())
    }

    /// Returns the names under which programs are linked with this library, for C and for Fortran.
    fn linked_as(self) -> &'static [&'static str] {
        match self {
            Self::Openmpi => &["libmpi.so.40", "libmpi_mpifh.so.40", "libmpi_usempif08.so.40"],
            Self::Mpich => &["libmpich.so.12", "libmpi.so.12", "libmpichfort.so.12", "libmpifort.so.12"],
            Self::Abi => &["libmpi_abi.so.1", "libmpifort_abi.so.1"],
        }
    }

    /// Returns the launcher's family. A launcher starts only programs of its own family and of the standard ABI.
    fn launched() -> Option<Self> {
        match Launcher::detect().starter {
            Some(Starter::OpenMpi) => Some(Self::Openmpi),
            Some(Starter::Mpich) => Some(Self::Mpich),
            _ => None,
        }
    }
}

/// Replaces this process by the program. Returns the failure if it cannot.
pub(super) fn run(args: &Args) -> Failure {
    let program = Path::new(&args.command[0]);
    let error = match prepared(args) {
        Ok(mut command) => command.exec(),
        // A program that does not exist has no MPI either.
        Err(_) if find_program(program).is_none() => Errno::NOENT.into(),
        // All ranks find the same error.
        Err(why) => return Failure::refusal(is_reporter(), why),
    };
    Failure::Unstarted(format!("cannot run `{}`: {error}", program.display()), code_of_unstarted(&error))
}

fn prepared(args: &Args) -> Result<Command, String> {
    let family = match args.mpi {
        Some(family) => family,
        None => family_of(linked_with(Path::new(&args.command[0])), Family::launched())?,
    };
    let library = library(args.libraries.as_deref(), family)?;
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]).env(PRELOAD, preloaded(&library));
    if args.report {
        command.env(ACCELERATE_REPORT, "1");
    }
    Ok(command)
}

/// Determines a program's MPI from the libraries that it is linked with and from its launcher. A script is linked with none.
fn family_of(linked: Option<Family>, launched: Option<Family>) -> Result<Family, String> {
    match (linked, launched) {
        (Some(linked), Some(launched)) if linked != Family::Abi && linked != launched => Err(format!(
            "the program is linked with {}, but was started by mpirun of {}: start it with the mpirun of its own MPI",
            linked.name(),
            launched.name()
        )),
        (Some(family), _) | (None, Some(family)) => Ok(family),
        (None, None) => Err(
            "cannot detect the MPI of the program: start this command under mpirun, or use --mpi openmpi, \
                             --mpi mpich or --mpi abi"
                .to_owned(),
        ),
    }
}

/// Returns the MPI that a program is directly linked with, if it is an executable.
fn linked_with(program: &Path) -> Option<Family> {
    let bytes = fs::read(find_program(program)?).ok().filter(|bytes| bytes.starts_with(b"\x7fELF"))?;
    // Library names are strings between zero bytes.
    let names: Vec<_> = bytes.split(|&byte| byte == 0).filter(|name| name.starts_with(b"libmp")).collect();
    let is_linked = |family: &Family| family.linked_as().iter().any(|name| names.contains(&name.as_bytes()));
    Family::value_variants().iter().copied().find(is_linked)
}

fn library(folder: Option<&Path>, family: Family) -> Result<PathBuf, String> {
    let folder = match folder {
        Some(folder) => folder.to_owned(),
        None => beside_this_command().ok_or("cannot determine the path of this command: use --libraries")?,
    };
    let library = folder.join(family.library());
    // The path is absolute, because the program may change its directory before it starts others.
    let library = library.canonicalize().map_err(|error| {
        format!(
            "no library for {} ({}: {error}): build one for each installed MPI with `scripts/install-preload --prefix FOLDER`, \
             and use --libraries FOLDER/lib/unisono",
            family.name(),
            library.display()
        )
    })?;
    // The dynamic loader would ignore both parts of the name, and the program would run without Unisono.
    if library.to_string_lossy().contains([' ', ':']) {
        return Err(format!(
            "`{}` contains a space or a colon, which separate the libraries in {PRELOAD}: install the libraries in another folder, and use \
             --libraries",
            library.display()
        ));
    }
    Ok(library)
}

fn beside_this_command() -> Option<PathBuf> {
    let command = std::env::current_exe().ok()?;
    Some(command.parent()?.parent()?.join("lib/unisono"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn family_follows_the_program_and_the_launcher() {
        use Family::{Abi, Mpich, Openmpi};
        assert_eq!(family_of(None, Some(Openmpi)), Ok(Openmpi));
        assert_eq!(family_of(Some(Mpich), None), Ok(Mpich));
        assert_eq!(family_of(Some(Mpich), Some(Mpich)), Ok(Mpich));
        assert_eq!(family_of(Some(Abi), Some(Mpich)), Ok(Abi));
        assert!(
            family_of(Some(Mpich), Some(Openmpi)).unwrap_err().contains("linked with MPICH, but was started")
        );
        assert!(family_of(None, None).unwrap_err().contains("--mpi mpich"));
    }

    #[test]
    fn missing_library_error_names_the_build_command() {
        let folder = tempfile::tempdir().unwrap();
        let why = library(Some(folder.path()), Family::Mpich).unwrap_err();
        assert!(why.contains("no library for MPICH") && why.contains("scripts/install-preload"), "{why}");
    }

    #[test]
    fn library_that_the_loader_cannot_name_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for (name, is_refused) in [("a b", true), ("a:b", true), ("ab", false)] {
            let folder = folder.path().join(name);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join(Family::Mpich.library()), "").unwrap();
            let found = library(Some(&folder), Family::Mpich);
            assert_eq!(found.is_err_and(|why| why.contains("LD_PRELOAD")), is_refused, "{name}");
        }
    }

    #[test]
    fn missing_program_is_reported_before_its_mpi() {
        let command = vec!["/there/is/no/such/program".into()];
        let failure = run(&Args { report: false, mpi: None, libraries: None, command });
        assert!(
            matches!(&failure, Failure::Unstarted(why, 127) if why.contains("No such file")),
            "{failure:?}"
        );
    }

    #[test]
    fn library_names_are_read_only_from_executables() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        for (bytes, expected) in [
            (&b"\x7fELF\0libc.so.6\0libmpi.so.40\0"[..], Some(Family::Openmpi)),
            (b"\x7fELF\0libmpich.so.12\0", Some(Family::Mpich)),
            (b"\x7fELF\0libmpi_abi.so.1\0", Some(Family::Abi)),
            (b"\x7fELF\0libc.so.6\0", None),
            (b"#!/bin/sh\0libmpi.so.40\0", None),
        ] {
            fs::write(&program, bytes).unwrap();
            assert_eq!(linked_with(&program), expected);
        }
    }
}
