//! Code shared by the tests of several crates.

pub mod idx;
pub mod launch;
pub mod left;
pub mod mutants;
pub mod random;
pub mod shared;
pub mod soak;
pub mod stand_ins;
pub mod suite;
