//! Errors of candle in a run.

use unisono_train::TrainError;

/// Returns an error of candle as that of a run: `?` does not make two conversions.
pub(crate) fn failed(error: candle_core::Error) -> TrainError {
    TrainError::Replica(error.into())
}

/// Returns the text of an error about a file of the user's, without the backtrace that candle appends where `RUST_BACKTRACE`
/// is set.
pub(crate) fn text(error: candle_core::Error) -> String {
    match error {
        candle_core::Error::WithBacktrace { inner, .. } => text(*inner),
        error => error.to_string(),
    }
}
