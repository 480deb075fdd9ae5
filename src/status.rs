//! The state that ranks publish to each other besides messages: failures, departures, and the activity of each rank.
//!
//! Every rank records its calls in a ring buffer, its flight recorder. After a failure it is written to a file ([`Dump`]). The
//! files of all ranks together explain the failure ([`Flight`], `unisono hang-report`).
//!
//! This module only holds state. It never ends a rank, a process or a wait.

mod attempts;
mod board;
mod dump;
#[allow(unsafe_code, reason = "memory is shared with other processes")]
mod layout;
mod lockstep;
mod panics;
mod report;
mod ring;
mod time;

pub(crate) use attempts::{PIECE_BYTES, PieceNumber};
pub(crate) use board::{FirstFailure, Gone, Guard, PROCESS_ENDED, Recording, StatusBoard};
pub use dump::{Dump, Failed};
pub(crate) use dump::{dump, dump_all, dump_failed};
#[cfg(feature = "nccl")]
pub(crate) use lockstep::LEAD;
pub(crate) use panics::{keep_panic, panicked};
pub use report::{Flight, FlightError};
pub(crate) use ring::RECORDS;

pub use crate::record::{Doing, GroupWait, Record, Stage, State};
