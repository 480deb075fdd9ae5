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
        (limits.usual.timeout, limits.first.timeout) = (timeout, timeout);
        self.engine_owner.set_limits(limits);
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
        // Whether the work failed, then the error text, padded with zeros.
        let mut encoded = [0_u8; 1 + CAUSE];
        if let Some(Err(cause)) = &done {
            let cause = &cause.as_bytes()[..cause.floor_char_boundary(CAUSE)];
            encoded[0] = 1;
            encoded[1..=cause.len()].copy_from_slice(cause);
        }
        self.call().of_library(label).broadcast(&mut encoded, 0)?;
        if encoded[0] == 0 {
            return Ok(done.and_then(Result::ok));
        }
        let cause = String::from_utf8_lossy(&encoded[1..]).trim_end_matches('\0').to_owned();
        Err(Error::OnRank0 { label: label.to_owned(), cause })
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
