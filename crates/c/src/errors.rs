//! Errors: a code for the caller, and a text for the user.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use unisono::{Error, ErrorCode, panic_text};

/// Success.
pub const UNISONO_OK: i32 = 0;
/// Refused: the library does not support the call.
pub const UNISONO_ERROR_UNSUPPORTED: i32 = 1;
/// Refused: a function of the program failed on rank 0.
pub const UNISONO_ERROR_ON_RANK_0: i32 = 2;
/// Refused: the system does not provide the memory.
pub const UNISONO_ERROR_MEMORY: i32 = 3;
/// Refused: a library is missing or unsuitable.
pub const UNISONO_ERROR_LIBRARY: i32 = 4;
/// Refused: the ranks do not find each other.
pub const UNISONO_ERROR_LAUNCH: i32 = 5;
/// Refused: a setting is invalid, or differs between ranks.
pub const UNISONO_ERROR_SETTING: i32 = 6;
/// Refused: CUDA's driver returned an error.
pub const UNISONO_ERROR_CUDA: i32 = 8;
/// Refused: NCCL returned an error.
pub const UNISONO_ERROR_NCCL: i32 = 9;
/// Refused: an argument is invalid.
pub const UNISONO_ERROR_ARGUMENT: i32 = 50;
/// Lost: another rank did not arrive in time.
pub const UNISONO_ERROR_TIMEOUT: i32 = 101;
/// Lost: ranks made different calls. The text names both.
pub const UNISONO_ERROR_MISMATCH: i32 = 102;
/// Lost: another rank freed its communicator.
pub const UNISONO_ERROR_LEFT: i32 = 103;
/// Lost: another rank failed, or this one did in an earlier call.
pub const UNISONO_ERROR_ABORTED: i32 = 104;
/// Lost: this rank failed in the call.
pub const UNISONO_ERROR_FAILED: i32 = 105;
/// Lost: the GPU did not finish in time.
pub const UNISONO_ERROR_OVERDUE: i32 = 106;
/// Lost: other ranks are out of reach, may be alive, and may continue without this one.
pub const UNISONO_ERROR_PARTITIONED: i32 = 107;
/// Lost: a defect of the library, which its text describes.
pub const UNISONO_ERROR_PANIC: i32 = 150;

#[derive(Debug)]
pub(crate) enum Failure {
    Argument(String),
    Error(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

pub(crate) fn argument(what: impl Into<String>) -> Failure {
    Failure::Argument(what.into())
}

struct Last {
    text: CString,
    rank: c_int,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::new(Last { text: CString::default(), rank: -1 });
}

fn keep(text: String, rank: Option<usize>) {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    let rank = rank.map_or(-1, |rank| rank as c_int);
    // A destructor of another thread-local value may run after that of this one.
    let _ = LAST.try_with(|last| *last.borrow_mut() = Last { text, rank });
}

/// Runs the body of a function, stores the text of an error, and returns its code.
pub(crate) fn guarded(body: impl FnOnce() -> Result<()>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => UNISONO_OK,
        Ok(Err(Failure::Argument(what))) => {
            keep(what, None);
            UNISONO_ERROR_ARGUMENT
        }
        Ok(Err(Failure::Error(error))) => {
            keep(error.to_string(), error.failed_rank());
            error.code().number()
        }
        Err(panic) => {
            let text = panic_text(&*panic).unwrap_or("for an unknown reason");
            keep(format!("unisono panicked: {text}"), None);
            UNISONO_ERROR_PANIC
        }
    }
}

/// Returns the text of the last error of a function on this thread; empty if there was none. Valid until the next error on this
/// thread.
#[unsafe(no_mangle)]
pub extern "C" fn unisono_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().text.as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the rank that failed, according to the last error on this thread; -1 if that is not known.
#[unsafe(no_mangle)]
pub extern "C" fn unisono_failed_rank() -> c_int {
    LAST.try_with(|last| last.borrow().rank).unwrap_or(-1)
}

/// Returns whether an error with this code loses the communicator: 1 if so, otherwise 0.
#[unsafe(no_mangle)]
pub extern "C" fn unisono_is_fatal(code: c_int) -> c_int {
    let is_fatal =
        code == UNISONO_ERROR_PANIC || ErrorCode::from_number(code).is_some_and(ErrorCode::is_fatal);
    c_int::from(is_fatal)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Sender};

    use super::*;

    #[test]
    fn codes_match_those_of_the_library() {
        let codes = [
            (ErrorCode::Unsupported, UNISONO_ERROR_UNSUPPORTED),
            (ErrorCode::OnRank0, UNISONO_ERROR_ON_RANK_0),
            (ErrorCode::Memory, UNISONO_ERROR_MEMORY),
            (ErrorCode::Library, UNISONO_ERROR_LIBRARY),
            (ErrorCode::Launch, UNISONO_ERROR_LAUNCH),
            (ErrorCode::Setting, UNISONO_ERROR_SETTING),
            (ErrorCode::Cuda, UNISONO_ERROR_CUDA),
            (ErrorCode::Nccl, UNISONO_ERROR_NCCL),
            (ErrorCode::Timeout, UNISONO_ERROR_TIMEOUT),
            (ErrorCode::Mismatch, UNISONO_ERROR_MISMATCH),
            (ErrorCode::Left, UNISONO_ERROR_LEFT),
            (ErrorCode::Aborted, UNISONO_ERROR_ABORTED),
            (ErrorCode::Failed, UNISONO_ERROR_FAILED),
            (ErrorCode::Overdue, UNISONO_ERROR_OVERDUE),
            (ErrorCode::Partitioned, UNISONO_ERROR_PARTITIONED),
        ];
        for (code, number) in codes {
            assert_eq!(code.number(), number);
            assert_eq!(unisono_is_fatal(number) == 1, code.is_fatal());
        }
        // This library is not linked with MPI.
        let unnamed = ErrorCode::ALL.into_iter().filter(|code| codes.iter().all(|(named, _)| named != code));
        assert_eq!(unnamed.collect::<Vec<_>>(), [ErrorCode::Mpi]);
        for own in [UNISONO_ERROR_ARGUMENT, UNISONO_ERROR_PANIC] {
            assert_eq!(ErrorCode::from_number(own), None, "the number is free");
        }
    }

    #[test]
    fn panics_are_returned_as_errors() {
        assert_eq!(guarded(|| panic!("on purpose")), UNISONO_ERROR_PANIC);
        let text = LAST.with(|last| last.borrow().text.clone());
        assert_eq!(text.to_str(), Ok("unisono panicked: on purpose"));
    }

    #[test]
    fn functions_return_errors_while_a_thread_ends() {
        struct AtEnd(Sender<(c_int, c_int)>);

        impl Drop for AtEnd {
            fn drop(&mut self) {
                let code = guarded(|| Err(argument("too late")));
                assert!(!unisono_last_error().is_null());
                self.0.send((code, unisono_failed_rank())).unwrap();
            }
        }

        thread_local! {
            static EARLIER: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
            static LATER: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
        }

        let (results, received) = mpsc::channel();
        let run = move || {
            EARLIER.set(Some(AtEnd(results.clone())));
            assert_eq!(guarded(|| Err(argument("in time"))), UNISONO_ERROR_ARGUMENT);
            LATER.set(Some(AtEnd(results)));
        };
        std::thread::spawn(run).join().unwrap();
        assert_eq!(received.iter().collect::<Vec<_>>(), [(UNISONO_ERROR_ARGUMENT, -1); 2]);
    }
}
