//! Spans of the program in the trace of `UNISONO_TRACE`, beside the calls of each rank, on one timeline.
//!
//! `docs/observability.md` describes the files.

pub use crate::observe::{Span, is_on, record, span};
