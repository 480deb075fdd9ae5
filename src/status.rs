//! The state that ranks publish to each other besides messages: failures, departures, and the activity of each rank.
//!
//! Every rank records its calls in a ring buffer, its flight recorder. After a failure it is written to a file ([`Dump`]). The
//! files of all ranks together explain the failure ([`Flight`], `unisono hang-report`).
//!
//! This module only holds state. It never ends a rank, a process or a wait.

use std::cell::RefCell;

mod attempts;
mod board;
mod dump;
#[allow(unsafe_code, reason = "memory is shared with other processes")]
mod layout;
mod lockstep;
mod report;
mod ring;

pub(crate) use attempts::{PIECE_BYTES, PieceNumber};
pub(crate) use board::{FirstFailure, Gone, Guard, PROCESS_ENDED, Recording, SHRINKING, StatusBoard};
pub use dump::{Dump, Failed};
pub(crate) use dump::{dump, dump_all, dump_failed};
#[cfg(feature = "nccl")]
pub(crate) use lockstep::LEAD;
pub use report::{Flight, FlightError};
pub(crate) use ring::RECORDS;

pub use crate::record::{Doing, GroupWait, Record, Stage, State};

thread_local! {
    /// The text of the last panic of a thread, for the failure report of its rank.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

pub(crate) fn keep_panic(text: String) {
    PANIC.set(Some(text));
}

/// Forgets the text of a panic that is returned as an error.
pub(crate) fn forget_panic() {
    PANIC.set(None);
}

/// Returns the cause of failure of a rank whose thread panics.
pub(crate) fn panicked() -> String {
    let text = PANIC.try_with(|last| last.borrow().clone()).ok().flatten();
    text.unwrap_or_else(|| "it panicked".to_owned())
}
