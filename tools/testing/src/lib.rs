//! What the tests of several crates share.

pub mod launch;
pub mod left;
pub mod random;
pub mod soak;
