//! Memory: pages from the system, registered arrays that other ranks access, and buffers kept between calls.

#[allow(unsafe_code, reason = "memory comes from the system")]
mod pages;
#[allow(unsafe_code, reason = "memory that other ranks write to")]
mod registered;
mod scratch;

pub(crate) use pages::Pages;
#[cfg(test)]
pub(crate) use registered::Block;
pub use registered::Registered;
pub(crate) use registered::{Location, Registry};
pub(crate) use scratch::Scratch;
