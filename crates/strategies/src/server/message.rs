//! The messages between a worker and a server. The worker asks, and the server answers; values and gradients follow.

use bytemuck::{Pod, Zeroable};
use unisono::{Communicator, Result};

use unisono_train::Tally;

/// The ranks of the world that a link is.
pub(super) const SERVER: usize = 0;
pub(super) const CLIENT: usize = 1;

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Kind {
    /// Asks the coordinator what to do next.
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

impl Kind {
    const ALL: [Self; 12] = [
        Self::Ask,
        Self::Trained,
        Self::Evaluated,
        Self::Pull,
        Self::Push,
        Self::Restore,
        Self::Read,
        Self::Leave,
        Self::Wait,
        Self::Train,
        Self::Evaluate,
        Self::Done,
    ];
}

/// A message; each kind uses the fields that concern it.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Message {
    pub(super) kind: u64,
    /// Whether the sender was asked to stop.
    pub(super) asks_to_stop: u64,
    /// The epoch, from 1, and the step in it, from 0.
    pub(super) epoch: u64,
    pub(super) step: u64,
    /// The number of a share or of an evaluation batch.
    pub(super) number: u64,
    /// Of an evaluation: the shares applied before it.
    pub(super) applied: u64,
    pub(super) rate: f64,
    pub(super) targets: f64,
    pub(super) loss: f64,
    pub(super) correct: f64,
    /// Of an answer to gradients, and of the report of its share: the parameter that they have spoiled, from 1, or 0; its largest
    /// magnitude; and the server.
    pub(super) spoiled: u64,
    pub(super) largest: f64,
    pub(super) server: u64,
    /// How long the worker waited for servers, and for data, in seconds.
    pub(super) waited: f64,
    pub(super) input: f64,
}

const WORDS: usize = size_of::<Message>() / size_of::<u64>();

impl Message {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind: kind as u64, ..Self::zeroed() }
    }

    pub(super) fn with(self, Tally { targets, loss, correct }: Tally) -> Self {
        Self { targets, loss, correct, ..self }
    }

    pub(super) fn kind(&self) -> Kind {
        Kind::ALL[self.kind as usize]
    }

    pub(super) fn tally(&self) -> Tally {
        let &Self { targets, loss, correct, .. } = self;
        Tally { targets, loss, correct }
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
        let words: [u64; WORDS] = bytemuck::cast(message);
        self.comm.send(&words, self.other())
    }

    pub(super) fn hear(&mut self) -> Result<Message> {
        let mut words = [0_u64; WORDS];
        self.comm.receive(&mut words, self.other())?;
        Ok(bytemuck::cast(words))
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
    fn kinds_are_read_as_they_are_written() {
        for kind in Kind::ALL {
            assert_eq!(Message::new(kind).kind(), kind);
        }
    }
}
