//! NCCL: collectives on the memory of GPUs.
//!
//! Three layers: `sys` is bindgen's output and the table of functions that are resolved when the library is loaded, `result`
//! wraps each function in a checked call, and `safe` is the sound interface for the rest of the crate.
//!
//! NCCL is not linked. [`library`] loads it on first use. A program that never uses it does not need it.
//!
//! ```
//! match unisono::nccl::library() {
//!     Ok(nccl) => println!("NCCL {}, {}", nccl.version(), nccl.path().display()),
//!     // The places that were tried, and the remedy.
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
pub(crate) use result::name;
pub(crate) use safe::Communicator;
pub use unique_id::UniqueId;
pub use version::Version;
