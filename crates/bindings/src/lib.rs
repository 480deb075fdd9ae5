//! The common base of bindings to other languages: checks of arguments, settings and options, arrays whose element type is known only
//! at run time, the collectives on them, and handles that survive a `fork`.

pub mod arguments;
mod array;
mod collective;
pub mod device;
mod in_flight;
mod options;
mod owner;

pub use array::Lent;
pub use collective::{Collective, NO_PARTS};
pub use in_flight::{InFlight, Plan};
pub use options::{ByProgram, Options, Settings};
pub use owner::Owner;
