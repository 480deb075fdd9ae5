//! First messages received before they are expected.
//!
//! A rank that waits for long also receives messages that it does not expect. Otherwise, two ranks that make different calls
//! would wait for each other, or for a third, until the deadline.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::time::Instant;

use unisono_collectives::Rank;

use super::sys::{Comm, Request};
use super::wire::{FIRST, FIRST_TAG};
use crate::memory::Scratch;
use crate::status::StatusBoard;
use crate::transport::waiting::{STRAGGLING, Sight};
use crate::transport::{Failure, Header, Waiting};

/// Overheard messages that are not yet received, oldest first.
#[derive(Debug, Default)]
pub(super) struct Overheard {
    messages: VecDeque<(Rank, Scratch)>,
    /// The newest of them, while it is arriving.
    arriving: Option<Request>,
}

/// Listens during one exchange.
pub(super) struct Listening<'a> {
    pub(super) comm: Comm,
    pub(super) status: &'a StatusBoard,
    pub(super) header: &'a Header,
    pub(super) overheard: &'a mut Overheard,
    /// When it became known that the awaited rank will not send.
    pub(super) gone_since: Option<Instant>,
}

impl Listening<'_> {
    /// The oldest overheard message from this rank, if there is one.
    pub(super) fn recall(
        &mut self,
        from: Rank,
        waiting: &mut Waiting<'_>,
    ) -> Result<Option<Scratch>, Failure> {
        while !self.has_arrived()? {
            waiting.pause_for(from)?;
        }
        let messages = &mut self.overheard.messages;
        let position = messages.iter().position(|(sender, _)| *sender == from);
        Ok(position.and_then(|position| messages.remove(position)).map(|(_, message)| message))
    }

    /// The periodic check of a rank that has waited for a while.
    pub(super) fn look_around(&mut self, other: Rank, waiting: &Waiting<'_>) -> Result<Sight, Failure> {
        if waiting.is_long() {
            self.listen()?;
            self.header.check_called(other, self.status)?;
        }
        let Some(failure) = Failure::left(other, self.status) else { return Ok(Sight::Nothing) };
        let gone_since = *self.gone_since.get_or_insert_with(Instant::now);
        let silence = gone_since.elapsed().min(waiting.silence());
        Ok(if silence > STRAGGLING { Sight::Hopeless(failure) } else { Sight::Nothing })
    }

    /// Receives one more message, if there is one, and checks that its sender is in the same collective.
    pub(super) fn listen(&mut self) -> Result<(), Failure> {
        if !self.has_arrived()? {
            return Ok(());
        }
        let Some(probed) = self.comm.probe(None, FIRST_TAG).map_err(Failure::Error)? else { return Ok(()) };
        let from = probed.from;
        let mut message = Scratch::default();
        // SAFETY: the memory goes into the communicator with its message, and is neither read, nor changed,
        // nor freed before the request is done: `has_arrived` is asked first.
        let request = unsafe { probed.begin_receive(message.take(FIRST).as_mut_ptr(), FIRST as c_int) };
        self.overheard.arriving = Some(request.map_err(Failure::Error)?);
        self.overheard.messages.push_back((from, message));
        Ok(())
    }

    /// Whether no message is arriving any more. Checks a message that completes.
    fn has_arrived(&mut self) -> Result<bool, Failure> {
        let Overheard { messages, arriving } = &mut *self.overheard;
        let Some(request) = arriving else { return Ok(true) };
        if !request.is_done().map_err(Failure::Error)? {
            return Ok(false);
        }
        *arriving = None;
        let (from, message) = messages.back_mut().expect("what arrives has a place");
        let theirs: Header = *bytemuck::from_bytes(message.take(size_of::<Header>()));
        self.header.check_overheard(&theirs, *from, self.status)?;
        Ok(true)
    }
}
