//! Deadlines of calls, quiet sections, and work of rank 0 alone.

use std::fmt::Display;
use std::time::Duration;

use super::Communicator;
use crate::error::{Error, Result};
use crate::status::{StatusBoard, panicked};

/// The most bytes of rank 0's error text that the other ranks receive.
const CAUSE: usize = 500;

impl Communicator {
    /// Sets how long another rank may be silent while this one waits for it before the call fails: ten minutes by default
    /// (`UNISONO_TIMEOUT_S`). Data that arrive renew the deadline. The first call waits for half an hour (`UNISONO_FIRST_TIMEOUT_S`), unless this was called before.
    ///
    /// A local operation: it does not wait for calls in flight, which keep their timeout.
    pub fn set_timeout(&mut self, timeout: Duration) {
        let mut limits = self.engine_owner.limits();
        limits.set_timeout(timeout);
        self.engine_owner.set_limits(limits);
    }

    /// Makes several calls with this timeout: [`Communicator::call`] with a timeout, for a closure.
    ///
    /// ```
    /// use std::time::Duration;
    /// use unisono::ReduceOp;
    ///
    /// let ended = unisono::threads(2, |mut comm| -> unisono::Result<()> {
    ///     let mut loss = [1.0_f32];
    ///     comm.with_timeout(Duration::from_secs(5), |comm| comm.all_reduce(&mut loss, ReduceOp::Mean))?;
    ///     Ok(())
    /// });
    /// assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    /// ```
    pub fn with_timeout<R>(&mut self, timeout: Duration, calls: impl FnOnce(&mut Self) -> R) -> R {
        calls(&mut self.call().timeout(timeout))
    }

    /// Runs a section that may take long, such as a validation or a checkpoint. While any rank is in such a section, ranks do not
    /// warn about waits, and a wait may take a day (`UNISONO_QUIET_TIMEOUT_S`). Reports of this rank's activity show the label.
    ///
    /// A local operation: ranks may call it independently, and make calls inside.
    ///
    /// ```
    /// use unisono::ReduceOp;
    ///
    /// let ended = unisono::threads(2, |mut comm| -> unisono::Result<()> {
    ///     let accuracy = comm.quiet("validation", |_| 0.5_f32);
    ///     comm.all_reduce(&mut [accuracy], ReduceOp::Mean)?;
    ///     Ok(())
    /// });
    /// assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    /// ```
    pub fn quiet<R>(&mut self, label: &str, section: impl FnOnce(&mut Self) -> R) -> R {
        let status = self.status.clone();
        status.begin_quiet(label);
        status.exchange_now();
        let _quiet = Quiet(&status);
        section(self)
    }

    /// Runs `work` on rank 0 while the others wait, as long as it takes (as in [`Communicator::quiet`]). Returns the result on
    /// rank 0 and `None` on the others. All ranks call it.
    ///
    /// ```
    /// let ended = unisono::threads(2, |mut comm| -> unisono::Result<()> {
    ///     let lines = comm.on_rank0("reading the vocabulary", || Ok::<_, std::io::Error>(17))?;
    ///     assert_eq!(lines, (comm.rank() == 0).then_some(17));
    ///     Ok(())
    /// });
    /// assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    /// ```
    ///
    /// # Errors
    /// [`Error::OnRank0`] on all ranks if `work` failed on rank 0, with its error text; the communicator remains usable.
    /// Otherwise as [`Communicator::all_reduce`].
    pub fn on_rank0<T, E: Display>(
        &mut self,
        label: &str,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<Option<T>> {
        // Otherwise the broadcast would be refused after the work.
        self.check_choice_of_call()?;
        let done = (self.rank == 0).then(|| self.quiet(label, |_| work().map_err(|error| error.to_string())));
        // The length of the error text plus one (0 if there is none), then the text.
        let mut encoded = [0_u8; 4 + CAUSE];
        if let Some(Err(cause)) = &done {
            let cause = &cause.as_bytes()[..cause.floor_char_boundary(CAUSE)];
            encoded[..4].copy_from_slice(&(cause.len() as u32 + 1).to_le_bytes());
            encoded[4..4 + cause.len()].copy_from_slice(cause);
        }
        self.call().of_library(label).broadcast(&mut encoded, 0)?;
        let (length, cause) = encoded.split_at(4);
        let length = u32::from_le_bytes(length.try_into().expect("four bytes"));
        match (length.checked_sub(1), done) {
            (None, Some(Ok(value))) => Ok(Some(value)),
            (None, _) => Ok(None),
            (Some(length), _) => {
                let cause = String::from_utf8_lossy(&cause[..length as usize]).into_owned();
                Err(Error::OnRank0 { label: label.to_owned(), cause })
            }
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Before waiting for calls in flight, since other ranks wait for this one. A rank of a group fails in its world first.
            // Otherwise other ranks would attribute the failure of the group to themselves.
            self.status.give_up(self.rank, &panicked());
        }
    }
}

/// Ends the quiet section of this rank when it is dropped, also by a panic.
struct Quiet<'a>(&'a StatusBoard);

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        self.0.end_quiet();
        self.0.exchange_now();
    }
}
