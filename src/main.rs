//! Unisono.
fn main() {}
