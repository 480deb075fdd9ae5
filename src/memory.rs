//! Memory: pages from the system, registered arrays that other ranks access, arrays that ranks share, and buffers kept between
//! calls.

#[allow(unsafe_code, reason = "memory comes from the system")]
mod pages;
#[allow(unsafe_code, reason = "memory that other ranks write to")]
mod registered;
mod scratch;
#[allow(unsafe_code, reason = "memory that other ranks write to")]
mod shared;

pub(crate) use pages::Pages;
#[cfg(test)]
pub(crate) use registered::Block;
pub use registered::Registered;
pub(crate) use registered::{Loan, Location, Registry};
pub(crate) use scratch::Scratch;
pub use shared::{Shared, SharedCounters};
