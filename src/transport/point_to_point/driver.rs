//! Drives the progress of messages.
//!
//! Every thread that waits for a message drives all of them. While no thread waits, a background thread drives the non-blocking ones.
//! Messages are not in the flight recorder, which holds calls with the same number on all ranks. A wait for a message appears only in the
//! error that ends it.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use unisono_collectives::Rank;

use super::flight::{self, Parts, Received, Sent};
use super::{Options, PointToPoint};
use crate::error::{Error, Result};
use crate::status::{FirstFailure, StatusBoard, panicked};
use crate::transport::{Deadlines, WaitFailure, Waiting};

/// The interval at which the background thread checks whether a thread of the program waits, which then drives the messages. If ranks
/// outnumber cores, a background thread that also polled would take the core from the awaited rank.
const CHECK_INTERVAL: Duration = Duration::from_micros(500);
/// The number of these checks without a message before the thread sleeps. Waking it up takes longer than starting a message.
const IDLE_CHECKS: u32 = 20;

/// The messages of a rank. Clones refer to the same ones.
#[derive(Debug, Clone)]
pub(crate) struct Messages(Arc<Common>);

#[derive(Debug)]
struct Common {
    status: StatusBoard,
    spins: u32,
    /// The number of threads of the program that drive messages.
    waiting: AtomicUsize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    messages: PointToPoint,
    thread: Option<JoinHandle<()>>,
    is_asleep: bool,
    is_ending: bool,
}

impl Messages {
    pub(in crate::transport) fn new(messages: PointToPoint, spins: u32) -> Self {
        let status = messages.status.clone();
        let state = Mutex::new(State { messages, thread: None, is_asleep: false, is_ending: false });
        Self(Arc::new(Common { status, spins, waiting: AtomicUsize::new(0), state, changed: Condvar::new() }))
    }

    /// Sends and receives at most one message each, and returns the source of the received message. `is_alone` is whether this rank starts no
    /// collective in the meantime. Errors are fatal, as in a collective.
    pub(crate) fn run(
        &self,
        options: &Options,
        outgoing: Option<Sent<'_>>,
        incoming: Option<Received<'_>>,
        is_alone: bool,
    ) -> Result<Option<Rank>> {
        let ends_all = EndsAll(self);
        // SAFETY: the values are borrowed until this returns, after both operations have ended. If it unwinds, `ends_all` ends them.
        let tickets = self.with(|messages| unsafe {
            let received = incoming.map(|(place, from)| messages.receive(options, from, place, None));
            [received, outgoing.map(|(bytes, to)| messages.send(options, to, bytes, None))]
        });
        let mut results = [None, None];
        let waits = self.waits();
        self.drive(self.waiting(), is_alone, |messages| {
            for (result, ticket) in results.iter_mut().zip(tickets) {
                if result.is_none() {
                    *result = ticket.and_then(|ticket| messages.take_ended(ticket));
                }
            }
            let first =
                tickets.iter().zip(&results).find(|(ticket, result)| ticket.is_some() && result.is_none());
            first.map(|(ticket, _)| *ticket)
        });
        drop(waits);
        std::mem::forget(ends_all);
        let [received, sent] = results;
        match (received.transpose(), sent.transpose()) {
            (Ok(from), Ok(_)) => Ok(from),
            // The other operation ended because of this one.
            (Err(Error::Aborted { .. }), Err(error)) | (Err(error), _) | (_, Err(error)) => Err(error),
        }
    }

    /// Starts to send and receive at most one message each, of values in this buffer. When they have ended, `on_end` receives the buffer and the
    /// source of the received message.
    pub(crate) fn start<B: std::marker::Send + 'static>(
        &self,
        options: &Options,
        buffer: B,
        parts: impl FnOnce(&mut B) -> Parts<'_>,
        on_end: impl FnOnce(Result<(B, Option<Rank>)>) + std::marker::Send + 'static,
    ) -> Result<()> {
        let mut state = self.lock();
        if state.thread.is_none() {
            let messages = self.clone();
            let thread = std::thread::Builder::new().name("messages".into()).spawn(move || messages.serve());
            match thread {
                Ok(thread) => state.thread = Some(thread),
                Err(cause) => {
                    drop(state);
                    return Err(self.fail_to_start(&cause));
                }
            }
        }
        drop(state);
        self.begin(options, buffer, parts, on_end);
        let state = self.lock();
        if state.is_asleep && !state.messages.is_idle() {
            self.0.changed.notify_all();
        }
        Ok(())
    }

    /// Ends all messages, since this rank cannot start the thread, and another rank waits for its message. Returns the error.
    fn fail_to_start(&self, cause: &io::Error) -> Error {
        let rank = self.0.status.rank();
        let error = Error::Launch(format!(
            "cannot start the thread for messages: {cause}; see `ulimit -u` and pids.max of a container, or use blocking calls"
        ));
        self.with(|messages| messages.lose(rank, &error.to_string()));
        error.in_call(rank)
    }

    /// As [`Messages::start`], without the thread that drives them.
    pub(in crate::transport) fn begin<B: std::marker::Send + 'static>(
        &self,
        options: &Options,
        buffer: B,
        parts: impl FnOnce(&mut B) -> Parts<'_>,
        on_end: impl FnOnce(Result<(B, Option<Rank>)>) + std::marker::Send + 'static,
    ) {
        self.with(|messages| {
            flight::start(messages, options, buffer, parts, on_end);
            // In most cases, this leaves no work for the thread.
            messages.progress();
        });
    }

    /// As [`Driver::drive_until`](crate::request::Driver::drive_until).
    pub(crate) fn drive_until(&self, waited: Duration, nap: Duration, is_done: &dyn Fn() -> bool) -> bool {
        let _waits = self.waits();
        self.drive(self.waiting().after(waited, nap), false, |_| (!is_done()).then_some(None))
    }

    /// Ends all messages but those that have arrived, because rank `first` has failed.
    pub(crate) fn close(&self, first: Rank, cause: &str) {
        self.with(|messages| {
            messages.progress();
            messages.close(first, cause);
        });
    }

    /// Returns the rank that failed first, and its cause.
    pub(crate) fn failure(&self) -> Option<(Rank, String)> {
        self.with(|messages| messages.failure.clone())
    }

    /// Returns whether the link may still access memory that returns to the program with a failure.
    pub(crate) fn are_stranded(&self) -> bool {
        self.with(|messages| messages.is_stranded())
    }

    /// Waits until all messages are sent and received, and ends the thread.
    pub(crate) fn finish(&self) {
        let mut state = self.lock();
        state.is_ending = true;
        let thread = state.thread.take();
        drop(state);
        self.0.changed.notify_all();
        let ended = thread.map(JoinHandle::join);
        debug_assert!(matches!(ended, None | Some(Ok(()))), "the thread runs no code of the program");
    }

    /// Locks the messages, which are consistent even after a panic.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `act` with the messages, and then the functions of the calls that have ended, without the lock.
    fn with<R>(&self, act: impl FnOnce(&mut PointToPoint) -> R) -> R {
        let mut state = self.lock();
        let result = act(&mut state.messages);
        let finished = std::mem::take(&mut state.messages.finished);
        if !finished.is_empty() {
            // Their functions free the memory of messages. The results of blocking calls end the job later, if they must.
            state.messages.end_job_if_stranded();
        }
        drop(state);
        for (on_end, result) in finished {
            // A panic of a buffer's destructor ends no other message.
            let _ = catch_unwind(AssertUnwindSafe(|| on_end(result)));
        }
        result
    }

    /// Drives all messages until `left` returns `None`. Returns whether there was progress. Until then, `left` returns the operation that the caller waits for, if any.
    fn drive(
        &self,
        mut waiting: Waiting<'_>,
        is_alone: bool,
        mut left: impl FnMut(&mut PointToPoint) -> Option<Option<u64>>,
    ) -> bool {
        let mut has_moved = false;
        loop {
            let (moved, left) = self.with(|messages| (messages.progress(), left(messages)));
            has_moved |= moved;
            let Some(ticket) = left else { return has_moved };
            if moved {
                waiting.renew();
                continue;
            }
            match waiting.pause() {
                Ok(false) => {}
                Ok(true) => self.with(|messages| {
                    // Otherwise a collective may record its own awaited rank.
                    let ticket = ticket.filter(|_| is_alone);
                    if let Some(other) = ticket.and_then(|ticket| messages.waits_for(ticket)) {
                        waiting.record(other);
                    }
                    messages.check(is_alone);
                }),
                Err(WaitFailure::Overdue(waited)) => unreachable!("the wait of {waited:?} has no deadline"),
                Err(WaitFailure::Failed(error)) => {
                    let (first, cause) = error.first_cause(self.0.status.rank());
                    // The other ranks do not know the cause of a callback of the program.
                    if self.0.status.failure().is_none() {
                        self.0.status.give_up(first, &cause);
                    }
                    self.close(first, &cause);
                }
            }
        }
    }

    /// Counts this thread of the program as one that drives messages, until the result is dropped.
    fn waits(&self) -> EndsWaiting<'_> {
        self.0.waiting.fetch_add(1, Ordering::Relaxed);
        EndsWaiting(self)
    }

    fn waiting(&self) -> Waiting<'_> {
        Waiting::new(self.0.spins, &Deadlines::NEVER, &self.0.status)
    }

    /// Drives messages while no thread of the program does.
    fn serve(&self) {
        let is_undriven = || self.0.waiting.load(Ordering::Relaxed) == 0;
        let mut state = self.lock();
        let mut idle_checks = 0;
        while !(state.is_ending && state.messages.is_idle()) {
            if idle_checks == IDLE_CHECKS {
                (idle_checks, state.is_asleep) = (0, true);
                state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.is_asleep = false;
                continue;
            }
            state =
                self.0.changed.wait_timeout(state, CHECK_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
            idle_checks = if state.messages.is_idle() { idle_checks + 1 } else { 0 };
            if idle_checks == 0 {
                drop(state);
                // A thread of the program that waits in short steps checks late.
                self.0.status.check_peers();
                match self.0.status.failure() {
                    Some(FirstFailure { first, cause, .. }) => self.close(first, &cause),
                    None => self.with(|messages| messages.check(false)),
                }
                self.drive(self.waiting().in_background(), false, |messages| {
                    (!messages.is_idle() && is_undriven()).then_some(None)
                });
                state = self.lock();
            }
        }
    }
}

/// Decrements the number of driving threads when it is dropped, since a function of the program that runs during waits may panic.
struct EndsWaiting<'a>(&'a Messages);

impl Drop for EndsWaiting<'_> {
    fn drop(&mut self) {
        self.0.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Ends all messages when it is dropped, since a call that unwinds must not leave pointers to its values, and reports the panic to the
/// other ranks, which wait for its messages.
struct EndsAll<'a>(&'a Messages);

impl Drop for EndsAll<'_> {
    fn drop(&mut self) {
        let (status, cause) = (&self.0.0.status, panicked());
        let rank = status.rank();
        status.give_up(rank, &cause);
        self.0.with(|messages| {
            messages.close(rank, &cause);
            messages.end_job_if_stranded();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Fabric;
    use crate::while_waiting::while_waiting;

    const OPTIONS: Options = Options::OF_BYTES;

    fn receive_from(rank: Rank) -> impl FnOnce(&mut Vec<u8>) -> Parts<'_> {
        move |place| Parts { outgoing: None, incoming: Some((place, Some(rank))) }
    }

    #[test]
    fn first_timeout_applies_until_a_message_has_ended() {
        let mut fabrics = Fabric::threads(2).unwrap();
        let [sender, receiver] = [0, 1].map(|rank| fabrics[rank].messages());
        let deadlines = Deadlines { timeout: Duration::from_millis(1), ..Deadlines::NEVER };
        let options = Options { deadlines, first_timeout: Duration::from_secs(600), ..OPTIONS };
        let receive = || receiver.run(&options, None, Some((&mut [0_u8; 3][..], Some(0))), true);
        let late = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            sender.run(&OPTIONS, Some((&[1, 2, 3][..], 1)), None, true)
        });
        assert_eq!(receive().unwrap(), Some(0));
        late.join().unwrap().unwrap();
        let error = receive().unwrap_err();
        assert!(matches!(error, Error::Timeout { other: 0, .. }), "{error}");
    }

    #[test]
    fn message_that_has_arrived_is_received_after_a_failure() {
        let mut fabrics = Fabric::threads(2).unwrap();
        let [sender, receiver] = [0, 1].map(|rank| fabrics[rank].messages());
        let ended = Arc::new(Mutex::new(None));
        let on_end = {
            let ended = Arc::clone(&ended);
            move |result: Result<(Vec<u8>, Option<Rank>)>| *ended.lock().unwrap() = Some(result)
        };
        receiver.begin(&OPTIONS, vec![0_u8; 3], receive_from(0), on_end);
        sender.run(&OPTIONS, Some((&[1, 2, 3][..], 1)), None, true).unwrap();
        receiver.close(0, "on purpose");
        let received = ended.lock().unwrap().take().expect("it has ended").unwrap();
        assert_eq!(received, (vec![1, 2, 3], Some(0)));
    }

    #[test]
    fn cause_of_a_callback_is_reported_to_the_other_ranks() {
        let mut fabrics = Fabric::threads(2).unwrap();
        let messages = fabrics[0].messages();
        let ended = Arc::new(Mutex::new(false));
        let on_end = {
            let ended = Arc::clone(&ended);
            move |_: Result<(Vec<u8>, Option<Rank>)>| *ended.lock().unwrap() = true
        };
        messages.begin(&OPTIONS, vec![0_u8], receive_from(1), on_end);
        let is_done = || *ended.lock().unwrap();
        let drive = || messages.drive_until(Duration::ZERO, Duration::MAX, &is_done);
        while_waiting(|| Err("interrupted".to_owned()), drive);
        let failure = fabrics[1].status().failure().expect("rank 0 has failed");
        assert_eq!((failure.first, &*failure.cause), (0, "interrupted"));
    }

    #[test]
    fn panic_of_a_callback_is_reported_to_the_other_ranks() {
        let mut fabrics = Fabric::threads(2).unwrap();
        let (messages, mut place) = (fabrics[0].messages(), [0_u8]);
        let receive = || messages.run(&OPTIONS, None, Some((&mut place[..], Some(1))), true);
        let call = || while_waiting(|| panic!("on purpose"), receive);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err());
        let failure = fabrics[1].status().failure().expect("rank 0 has failed");
        assert!(failure.first == 0 && failure.cause.starts_with("it panicked"), "{failure:?}");
    }

    #[test]
    fn rank_that_cannot_start_the_thread_ends_messages_of_others() {
        let folder = tempfile::tempdir().unwrap();
        let mut fabrics = Fabric::threads(2).unwrap();
        fabrics.iter().for_each(|fabric| fabric.status().set_flight_dir(folder.path().to_owned()));
        let [fails, waits] = [0, 1].map(|rank| fabrics[rank].messages());
        let failed = fails.fail_to_start(&io::ErrorKind::WouldBlock.into());
        let mut place = [0_u8];
        let aborted = waits.run(&OPTIONS, None, Some((&mut place[..], Some(0))), true).unwrap_err();
        assert!(failed.is_fatal());
        assert_eq!((failed.failed_rank(), aborted.failed_rank()), (Some(0), Some(0)), "{aborted}");
    }
}
