//! Errors of candle during a run.

use unisono_train::TrainError;

/// Converts an error of candle to an error of a run, because `?` does not chain two conversions.
pub(crate) fn failed(error: candle_core::Error) -> TrainError {
    TrainError::Replica(error.into())
}

/// Returns the text of an error about a user's file, without the backtrace that candle appends if `RUST_BACKTRACE` is set.
pub(crate) fn text(error: candle_core::Error) -> String {
    match error {
        candle_core::Error::WithBacktrace { inner, .. } => text(*inner),
        error => error.to_string(),
    }
}
