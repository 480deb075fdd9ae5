//! What one rank writes often lies on no cache line that holds anything else.

/// Something on cache lines of its own.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Alone<T>(pub(super) T);
