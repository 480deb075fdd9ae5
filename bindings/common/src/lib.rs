//! What the bindings to other languages have in common: arrays whose element type is known only at run time, the collectives on
//! them, and handles that survive a `fork`.

mod array;
mod operation;
mod owner;

pub use array::Lent;
pub use operation::Operation;
pub use owner::Owner;
pub use unisono::{DType, half};
