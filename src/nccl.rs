//! NCCL: collectives on the memory of GPUs.
//!
//! Three floors: `sys` is bindgen's output and the table of functions that are resolved when the library is loaded,
//! `result` makes a checked call of each, and `safe` is what the rest of the crate uses.
//!
//! NCCL is no part of this program. It is loaded when it is first asked for ([`library`]), and until then nobody
//! misses it.
//!
//! ```
//! match unisono::nccl::library() {
//!     Ok(nccl) => println!("NCCL {}, {}", nccl.version(), nccl.path().display()),
//!     // Where it was looked for, and what to do.
//!     Err(error) => println!("{error}"),
//! }
//! ```

mod library;
mod result;
mod safe;
mod sys;
mod unique_id;
mod version;

pub use library::{Library, library};
pub(crate) use safe::Communicator;
pub use unique_id::UniqueId;
pub use version::Version;

/// Which of NCCL's headers this program was built with, for reports.
pub const HEADER: &str = env!("UNISONO_NCCL_HEADER");
