//! Unisono.
