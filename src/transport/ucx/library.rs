//! Finds, loads and checks UCX's library.

use std::error::Error as _;
use std::ffi::{CStr, c_uint};
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::OnceLock;

use super::sys::{Functions, ucs_status_t};

/// The name under which every UCP 1 is installed.
const NAME: &str = "libucp.so.0";
/// The version of the interface that Unisono uses, and the oldest library that provides it.
pub(super) const API: (c_uint, c_uint) = (1, 10);

/// UCX's library, loaded, with all functions that Unisono uses.
#[derive(Debug)]
pub(super) struct Library {
    pub(super) functions: Functions,
    version: String,
}

/// The status that a function of UCX returned, other than success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Status(pub(super) ucs_status_t);

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(status) = *self;
        // There is no status without a library.
        let Ok(library) = library() else { return write!(f, "status {status}") };
        // SAFETY: the function may be called with any status, and returns a text that ends with a zero.
        let text = unsafe { CStr::from_ptr((library.functions.ucs_status_string)(status)) };
        f.write_str(&text.to_string_lossy())
    }
}

/// Loads UCX's library on the first call, once per process.
///
/// # Errors
/// The reason why it cannot be used, and the remedy.
pub(super) fn library() -> Result<&'static Library, String> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    LIBRARY.get_or_init(|| Library::load().map_err(with_remedy)).as_ref().map_err(Clone::clone)
}

/// Returns the version of UCX's library, for reports.
///
/// # Errors
/// The reason why the library cannot be used, and the remedy.
pub fn version() -> Result<&'static str, String> {
    library().map(|library| &*library.version)
}

fn with_remedy(reason: String) -> String {
    format!(
        "UCX cannot be loaded: {reason}. Install your distribution's package (libucx0 of Debian and Ubuntu, ucx of Fedora and RHEL), \
         version {}.{} or later, or add the folder that contains {NAME} to LD_LIBRARY_PATH",
        API.0, API.1
    )
}

impl Library {
    fn load() -> Result<Self, String> {
        // SAFETY: loading runs the library's initialisers, which cannot be checked. The file is installed under UCX's name.
        let library = unsafe { libloading::Library::new(NAME) }
            .map_err(|error| error.source().map_or_else(|| error.to_string(), ToString::to_string))?;
        // The library is never closed: UCX has a thread, and hooks that run when other code returns memory to the system.
        let library = ManuallyDrop::new(library);
        restore_signals(&library);
        // SAFETY: the names are UCX's, whose signatures do not change within this name of the library; it is never closed.
        let functions = unsafe { Functions::resolve(&library) }
            .map_err(|missing| format!("{NAME} lacks {}", missing.join(", ")))?;
        let (mut major, mut minor, mut release) = (0, 0, 0);
        // SAFETY: the function writes integers to the addresses, which are valid during the call.
        unsafe { (functions.ucp_get_version)(&raw mut major, &raw mut minor, &raw mut release) };
        let version = format!("{major}.{minor}.{release}");
        if major != API.0 || minor < API.1 {
            return Err(format!("it is UCX {version}"));
        }
        tracing::debug!("UCX {version} is loaded");
        Ok(Self { functions, version })
    }
}

/// Removes the handlers of fatal signals that UCX installs when it is loaded: they belong to the program.
fn restore_signals(library: &libloading::Library) {
    type Disable = unsafe extern "C" fn();
    // SAFETY: the function has had this signature in every version of UCX that has it.
    if let Ok(disable) = unsafe { library.get::<Disable>("ucs_debug_disable_signals") } {
        // SAFETY: it restores the handlers that UCX replaced when it was loaded, which was just now.
        unsafe { disable() };
    }
}
