//! The outcome of a failed call: the call is refused, or the communicator is lost.

use unisono_collectives::Rank;

use super::Engine;
use crate::error::{Error, Result};
use crate::observe::flush;
use crate::status::{FirstFailure, dump_failed, panicked};

impl Engine {
    /// Settles the result of a call: any error but a refusal is fatal to the communicator.
    #[inline]
    pub(crate) fn settle<R>(&mut self, ended: Result<R>) -> Result<R> {
        match ended {
            Ok(_) => ended,
            Err(error) => Err(self.record_error(error)),
        }
    }

    #[cold]
    fn record_error(&mut self, error: Error) -> Error {
        if let Some(observer) = self.status.observer() {
            observer.failed(error.code());
        }
        if matches!(error, Error::Unsupported(_)) {
            return error;
        }
        let rank = self.transport.rank();
        let (first, cause) = error.first_cause(rank);
        self.lose(first, cause);
        error.in_call(rank)
    }

    /// Marks this communicator as lost because this rank failed. Returns the error of later calls.
    pub(crate) fn fail(&mut self, cause: &str) -> Error {
        self.lose(self.transport.rank(), cause.to_owned());
        self.check_alive().expect_err("this rank has failed")
    }

    /// Marks this communicator as lost because the function of a reduction has failed. Returns the error of the call.
    pub(crate) fn fail_by_reduction(&mut self, cause: String) -> Error {
        self.record_error(Error::Launch(cause))
    }

    /// Marks this communicator as lost because of rank `first`, and informs the other ranks.
    fn lose(&mut self, first: Rank, cause: String) {
        if self.failure.is_none() {
            self.transport.fail(first, &cause);
            dump_failed(&self.status, &cause);
            self.flush();
            self.close(first, cause);
        }
    }

    /// Ends this communicator on all ranks without a failure.
    pub(crate) fn revoke(&mut self, cause: &str) {
        if self.failure.is_none() {
            let rank = self.transport.rank();
            self.transport.fail(rank, cause);
            self.close(rank, cause.to_owned());
        }
    }

    fn flush(&self) {
        if self.status.observer().is_some_and(|observer| observer.is_of_world()) {
            flush();
        }
    }

    fn close(&mut self, first: Rank, cause: String) {
        self.messages.close(first, &cause);
        // The GPUs of the other ranks wait for this one, and this one for that of a rank that has failed.
        #[cfg(feature = "nccl")]
        if let Some(nccl) = self.gpu.as_mut().and_then(|gpu| gpu.nccl.as_mut()) {
            nccl.abort();
        }
        self.failure = Some((first, cause));
        self.transport.end_if_stranded(self.messages.are_stranded());
    }

    /// Checks at the start of a call that no rank has failed. Otherwise messages that a failed rank had sent could complete the call
    /// here, although it failed there.
    #[inline]
    pub(crate) fn begin(&mut self) -> Result<()> {
        self.check_alive()?;
        if self.is_in_call {
            return Err(self.fail(&panicked()));
        }
        match self.status.failure() {
            None => Ok(()),
            Some(FirstFailure { first: by, cause, .. }) => {
                let rank = self.transport.rank();
                self.settle(Err(Error::Aborted { rank, by, cause }))
            }
        }
    }

    #[inline]
    pub(crate) fn check_alive(&self) -> Result<()> {
        match &self.failure {
            None => Ok(()),
            Some((first, cause)) => {
                let rank = self.transport.rank();
                Err(Error::Aborted { rank, by: *first, cause: cause.clone() })
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if std::thread::panicking() || self.is_in_call {
            drop(self.fail(&panicked()));
        }
        // Other ranks wait for the messages in flight.
        self.messages.finish();
        if let Some((first, cause)) = self.messages.failure() {
            self.lose(first, cause);
        }
        self.flush();
    }
}

#[cfg(test)]
pub(super) mod tests;
