//! The common base of bindings to other languages: checks of arguments, settings and options, arrays whose element type is known only
//! at run time, the collectives on them, and handles that survive a `fork`.

pub mod arguments;
mod array;
pub mod device;
mod in_flight;
mod operation;
mod options;
mod owner;

pub use array::Lent;
pub use in_flight::InFlight;
pub use operation::{NO_PARTS, Operation, Plan};
pub use options::{Options, Settings};
pub use owner::Owner;
pub use unisono::{DType, half};
