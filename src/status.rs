//! What ranks know of each other beside their messages: who failed, who has left, what each does and did last.
//!
//! Every rank writes its calls down in a ring, its flight recorder. When something goes wrong it is written to a file
//! ([`Dump`]), and the files of all ranks together say what happened ([`Flight`], `unisono hang-report`).
//!
//! Here are facts only: nothing in here ends a rank, a process or a wait.

mod board;
mod dump;
mod failure;
mod report;
mod ring;
#[allow(unsafe_code, reason = "memory is shared with other processes")]
mod sheet;
mod time;

pub(crate) use board::{Recording, StatusBoard};
pub use dump::{Dump, Failed};
pub(crate) use dump::{dump, dump_all, dump_failed};
pub(crate) use failure::{FailureReport, Guard, keep_panic, panicked};
pub use report::{Flight, FlightError};
pub(crate) use ring::RECORDS;

pub use crate::record::{Doing, Record, Stage, State};
