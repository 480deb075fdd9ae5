//! The messages between a worker and a server. The worker asks, and the server answers; values and gradients follow.

use bytemuck::{CheckedBitPattern, NoUninit, bytes_of, checked};
use unisono::{Communicator, Result};

use unisono_train::LossSums;

/// The ranks of the world that a link is.
pub(super) const SERVER: usize = 0;
pub(super) const CLIENT: usize = 1;

/// The kinds of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, NoUninit, CheckedBitPattern)]
#[repr(u64)]
pub(super) enum Kind {
    /// Asks the coordinator what to do next.
    #[default]
    Ask,
    /// Tells the coordinator that a share is computed, and applied by all servers.
    Trained,
    /// Tells the coordinator the results of an evaluation batch.
    Evaluated,
    /// Asks a server for the values of its buckets, in the order of the forward pass. They follow.
    Pull,
    /// Gives a server the gradients of its buckets, in the order of the backward pass. They follow, and the server answers.
    Push,
    /// Sets what a server holds: the coordinator's. It follows, and the server answers.
    Restore,
    /// Asks a server for all that it holds.
    Read,
    /// Ends the link.
    Leave,
    /// Answers: ask again.
    Wait,
    /// Answers: compute a share.
    Train,
    /// Answers: evaluate a batch.
    Evaluate,
    /// Answers: done.
    Done,
}

/// A message; each kind uses the fields that concern it.
#[derive(Debug, Clone, Copy, PartialEq, Default, NoUninit, CheckedBitPattern)]
#[repr(C)]
pub(super) struct Message {
    pub(super) kind: Kind,
    /// Whether the sender was asked to stop.
    pub(super) asks_to_stop: u64,
    /// The epoch, from 1, and the step in it, from 0.
    pub(super) epoch: u64,
    pub(super) step: u64,
    /// The number of a share or of an evaluation batch.
    pub(super) number: u64,
    /// In an evaluation: the shares applied before it.
    pub(super) applied: u64,
    pub(super) rate: f64,
    pub(super) targets: f64,
    pub(super) loss: f64,
    pub(super) correct: f64,
    /// In an answer to gradients, and in the report of its share: the parameter that they have spoiled, from 1, or 0; its largest
    /// magnitude; and the server.
    pub(super) spoiled: u64,
    pub(super) largest: f64,
    pub(super) server: u64,
    /// The time that the worker waited for servers, and for data, in seconds.
    pub(super) waited: f64,
    pub(super) input: f64,
}

impl Message {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, ..Self::default() }
    }

    pub(super) fn with(self, LossSums { targets, loss, correct }: LossSums) -> Self {
        Self { targets, loss, correct, ..self }
    }

    pub(super) fn tally(&self) -> LossSums {
        let &Self { targets, loss, correct, .. } = self;
        LossSums { targets, loss, correct }
    }
}

/// One side of a link between a server and a worker, or the coordinator: a world of two, whose failure ends no other.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) comm: Communicator,
}

impl Link {
    pub(super) fn other(&self) -> usize {
        if self.comm.rank() == SERVER { CLIENT } else { SERVER }
    }

    pub(super) fn tell(&mut self, message: Message) -> Result<()> {
        self.comm.send(bytes_of(&message), self.other())
    }

    pub(super) fn hear(&mut self) -> Result<Message> {
        let mut bytes = [0; size_of::<Message>()];
        self.comm.receive(&mut bytes, self.other())?;
        Ok(checked::pod_read_unaligned(&bytes))
    }

    /// Asks, and waits for the answer.
    pub(super) fn ask(&mut self, message: Message) -> Result<Message> {
        self.tell(message)?;
        self.hear()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_are_written_and_an_unknown_kind_is_refused() {
        let sent = Message { rate: 0.5, ..Message::new(Kind::Done) };
        let mut bytes = bytes_of(&sent).to_vec();
        assert_eq!(checked::try_pod_read_unaligned(&bytes), Ok(sent));
        bytes[0] = 12;
        assert!(checked::try_pod_read_unaligned::<Message>(&bytes).is_err());
    }
}
