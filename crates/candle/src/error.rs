//! Errors of candle in a run.

use unisono_train::TrainError;

/// An error of candle as that of a run: `?` does not make two conversions.
pub(crate) fn failed(error: candle_core::Error) -> TrainError {
    TrainError::Replica(error.into())
}
