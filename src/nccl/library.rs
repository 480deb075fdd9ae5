//! Finds, loads and checks NCCL's library.

use std::error::Error as _;
use std::fs;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::sys::{self, Functions, Missing};
use super::version::Version;
use crate::config::NcclPlaces;
use crate::error::{Error, Result};

/// The name under which every NCCL 2 is installed.
const NAME: &str = "libnccl.so.2";
/// The additional name in development packages.
const UNVERSIONED: &str = "libnccl.so";

/// NCCL's library, loaded, with all functions that Unisono calls.
#[derive(Debug)]
pub struct Library {
    functions: Functions,
    version: Version,
    path: PathBuf,
}

/// Loads NCCL's library on the first call, once per process.
///
/// `UNISONO_NCCL` names the file or the folder that contains it. No other place is then tried. Otherwise the library is the one
/// that the system finds as `libnccl.so.2` or `libnccl.so`, or the one in the virtual environment `VIRTUAL_ENV` (`pip install
/// nvidia-nccl-cu13`).
///
/// # Errors
/// [`Error::Library`] if no place has a usable library: the places, the reason for each, and the remedy.
pub fn library() -> Result<&'static Library> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        let library = Library::open(&candidates(NcclPlaces::from_environment()));
        library.map_err(|error| error.to_string())
    });
    library.as_ref().map_err(|text| Error::Library(text.clone()))
}

impl Library {
    /// Loads the first of these files that is an NCCL with all functions that Unisono calls. The system searches for a name without
    /// a folder.
    ///
    /// [`library`] does the same for the usual places.
    ///
    /// # Errors
    /// [`Error::Library`] if none is usable, with the reason for each.
    pub fn open(candidates: &[PathBuf]) -> Result<Self> {
        let mut refused = Vec::new();
        for path in candidates {
            match Self::load(path) {
                Ok(library) => {
                    tracing::debug!("NCCL {} is {}", library.version, library.path.display());
                    return Ok(library);
                }
                Err(reason) => refused.push(format!("{}: {reason}", path.display())),
            }
        }
        Err(Error::Library(format!(
            "NCCL cannot be loaded from any of these places: {}. Install your distribution's package libnccl2, \
             or by `pip install nvidia-nccl-cu13` in a virtual environment; or set UNISONO_NCCL to the file {NAME}, or to \
             the folder that contains it",
            refused.join("; ")
        )))
    }

    fn load(path: &Path) -> Result<Self, String> {
        // SAFETY: loading runs the library's initialisers, which cannot be checked. The file is installed under NCCL's name,
        // or named by the user.
        let library = unsafe { libloading::Library::new(path) }.map_err(|error| reason(path, &error))?;
        // Never closed: after a unique id was created, a thread of NCCL runs its code. Even a refused library may have started
        // threads in its initialisers.
        let library = ManuallyDrop::new(library);
        // SAFETY: the names are NCCL's, whose signatures do not change within version 2; the library is never closed.
        let functions =
            unsafe { Functions::resolve(&library) }.map_err(|missing| without(&library, &missing))?;
        let version = functions.version().map_err(|error| error.to_string())?;
        let address = functions.ncclGetVersion as usize;
        let path = mapped_file(address).unwrap_or_else(|| path.to_owned());
        Ok(Self { functions, version, path })
    }

    /// Returns the version of the library.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the file that was loaded.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns NCCL's text for a result code.
    pub fn error_text(&self, code: u32) -> String {
        self.functions.error_text(code)
    }

    pub(super) fn functions(&self) -> &Functions {
        &self.functions
    }
}

/// Returns the files to try, in order.
fn candidates(places: NcclPlaces) -> Vec<PathBuf> {
    if let Some(given) = places.given {
        // A bare name means a file in the current folder. The system would search elsewhere for it.
        let given = std::path::absolute(&given).unwrap_or(given);
        return vec![if given.is_dir() { given.join(NAME) } else { given }];
    }
    let mut candidates = vec![PathBuf::from(NAME), PathBuf::from(UNVERSIONED)];
    let libraries = places.virtual_environment.map(|folder| folder.join("lib"));
    let folders = libraries.and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    let pythons = folders.filter(|folder| folder.file_name().to_string_lossy().starts_with("python3"));
    let mut wheels: Vec<PathBuf> =
        pythons.map(|python| python.path().join("site-packages/nvidia/nccl/lib").join(NAME)).collect();
    wheels.sort();
    candidates.append(&mut wheels);
    candidates
}

/// Returns the reason why a file could not be loaded: the system's message, without the file's name, with which it often
/// begins.
fn reason(path: &Path, error: &libloading::Error) -> String {
    let text = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    let name = format!("{}: ", path.display());
    text.strip_prefix(&name).unwrap_or(&text).to_owned()
}

/// Describes a library that lacks functions.
fn without(library: &libloading::Library, missing: &[Missing]) -> String {
    let names: Vec<String> =
        missing.iter().map(|Missing { name, since }| format!("{name} (of NCCL {since})")).collect();
    // SAFETY: `ncclGetVersion` has had this signature in every version of NCCL.
    let version =
        unsafe { library.get::<sys::ncclGetVersion>("ncclGetVersion") }.ok().and_then(|symbol| *symbol);
    let mut code = 0;
    // SAFETY: the function may be called at any time; it writes an integer to the address, which is valid during the call.
    let is = match version.map(|version| unsafe { version(&raw mut code) }) {
        Some(sys::ncclSuccess) => format!("it is NCCL {}", Version::from_code(code.unsigned_abs())),
        _ => "it is not NCCL".to_owned(),
    };
    format!("{is}: it lacks {}", names.join(", "))
}

/// Returns the file from which an address of this process is mapped.
fn mapped_file(address: usize) -> Option<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let contains = |line: &&str| {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        range.is_some_and(|(start, end)| {
            let [start, end] = [start, end].map(|number| usize::from_str_radix(number, 16).unwrap_or(0));
            (start..end).contains(&address)
        })
    };
    let line = maps.lines().find(contains)?;
    line.find('/').map(|start| PathBuf::from(&line[start..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configured_place_is_the_only_candidate() {
        let folder = tempfile::tempdir().unwrap();
        let given = |path: &Path| {
            let virtual_environment = Some(folder.path().to_owned());
            candidates(NcclPlaces { given: Some(path.to_owned()), virtual_environment })
        };
        assert_eq!(given(folder.path()), [folder.path().join(NAME)]);
        let file = folder.path().join("mine.so");
        assert_eq!(given(&file), [file]);
    }

    #[test]
    fn system_library_precedes_the_virtual_environment() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("lib/python3.12")).unwrap();
        fs::create_dir_all(folder.path().join("lib/other")).unwrap();
        let virtual_environment = Some(folder.path().to_owned());
        let wheel = folder.path().join("lib/python3.12/site-packages/nvidia/nccl/lib").join(NAME);
        let found = candidates(NcclPlaces { given: None, virtual_environment });
        assert_eq!(found, [PathBuf::from(NAME), PathBuf::from(UNVERSIONED), wheel]);
    }

    #[test]
    fn mapped_file_of_an_address_is_found() {
        let file = mapped_file(mapped_file as *const () as usize).unwrap();
        assert_eq!(file, std::env::current_exe().unwrap());
    }
}
