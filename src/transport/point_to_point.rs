//! Point-to-point messages of the program.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use super::waiting::{Poll, STRAGGLING, Sight};
use super::{Deadlines, Failure, Header, Headers, Incoming, Outgoing, Transport, Waiting};
use crate::status::StatusBoard;

impl Transport {
    /// Like [`Transport::exchange`], for two messages with different headers.
    pub(crate) fn exchange_two(
        &mut self,
        headers: Headers<'_>,
        outgoing: Outgoing<'_>,
        incoming: Incoming<'_>,
        deadlines: &Deadlines,
    ) -> Result<(), Failure> {
        match self {
            Self::Shared(shared) => shared.exchange_any(headers, Some(outgoing), Some(incoming), deadlines),
            Self::Nodes(nodes) => nodes.exchange_two(headers, outgoing, incoming, deadlines),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.exchange_two(headers, outgoing, incoming, deadlines),
            Self::Faulty(faulty) => {
                faulty.delay();
                match faulty.sent(Some(outgoing)) {
                    Some(outgoing) => faulty.inner.exchange_two(headers, outgoing, incoming, deadlines),
                    None => faulty.inner.exchange(headers.awaited, None, Some(incoming), deadlines),
                }
            }
        }
    }

    /// Waits until a message is the next thing received from some rank, and returns that rank. Ranks after `after` are checked
    /// first. `awaited` is the header of any message that this rank accepts.
    ///
    /// If no message can arrive because all other ranks are in a collective first, it returns one of those; receiving from it
    /// gives the error.
    pub(crate) fn any_sender(
        &mut self,
        awaited: &Header,
        after: Rank,
        deadlines: &Deadlines,
    ) -> Result<Rank, Failure> {
        if let Self::Faulty(faulty) = self {
            faulty.delay();
            return faulty.inner.any_sender(awaited, after, deadlines);
        }
        let status = self.status().clone();
        let (rank, ranks) = (status.rank(), status.ranks());
        let others = || (1..=ranks).map(|places| (after + places) % ranks).filter(|&other| other != rank);
        let mut waiting = Waiting::new(self.spins(), deadlines, &status);
        let mut gone = Gone { since: None, straggling: self.straggling() };
        let mut last = None;
        loop {
            for other in others() {
                if self.ahead(other, awaited)?.is_some_and(|header| header.is_message()) {
                    return Ok(other);
                }
            }
            if let Some(ended) = last {
                return ended;
            }
            let named = others().find(|&other| !status.has_left(other)).or_else(|| others().next());
            match waiting.pause_for(named.expect("there is another rank")) {
                Ok(false) => {}
                // Messages sent before a rank left or the deadline passed still count: look once more.
                Ok(true) => last = self.cannot_come(others(), (awaited, &status), &waiting, &mut gone)?,
                Err(late @ Failure::Timeout { .. }) => last = Some(Err(late)),
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Waits until a counter in shared memory has a value, which another rank gives it.
    pub(crate) fn wait_until(
        &self,
        other: Rank,
        (counter, value): (&AtomicU64, u64),
        deadlines: &Deadlines,
    ) -> Result<(), Failure> {
        let status = self.status().clone();
        let look = || match counter.load(Ordering::Acquire) {
            found if found == value => Ok(Poll::Done(())),
            _ => Ok(Poll::WaitsFor(other)),
        };
        let has_left = |other: Rank, _: &Waiting<'_>| match status.has_left(other) {
            true => Ok(Sight::Hopeless(Failure::Left { other })),
            false => Ok(Sight::Nothing),
        };
        Waiting::new(self.spins(), deadlines, &status).until(look, has_left)
    }

    /// The outcome when no message can arrive any more.
    fn cannot_come(
        &mut self,
        others: impl Iterator<Item = Rank>,
        (awaited, status): (&Header, &StatusBoard),
        waiting: &Waiting<'_>,
        gone: &mut Gone,
    ) -> Result<Option<Result<Rank, Failure>>, Failure> {
        let (mut in_collective, mut left) = (None, None);
        for other in others {
            let is_apart = || waiting.is_long() && awaited.apart(other, status).is_some();
            if self.ahead(other, awaited)?.is_some() || is_apart() {
                in_collective = in_collective.or(Some(other));
            } else if status.has_left(other) {
                left = left.or(Some(other));
            } else {
                return Ok(None);
            }
        }
        Ok(match (in_collective, left) {
            (_, Some(_)) if !gone.are_silent() => None,
            (Some(other), _) => Some(Ok(other)),
            (None, Some(other)) => Some(Err(Failure::Left { other })),
            (None, None) => None,
        })
    }

    /// The header of the next message from a rank, if it has arrived.
    #[cfg_attr(
        not(feature = "mpi"),
        allow(
            clippy::only_used_in_recursion,
            reason = "what this rank waits for is asked for by MPI's messages"
        )
    )]
    fn ahead(&mut self, from: Rank, awaited: &Header) -> Result<Option<Header>, Failure> {
        match self {
            Self::Shared(shared) => Ok(shared.ahead(from).copied()),
            Self::Nodes(nodes) => Ok(nodes.ahead(from)),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.ahead(from, awaited),
            Self::Faulty(faulty) => faulty.inner.ahead(from, awaited),
        }
    }

    /// How often this rank polls before it yields.
    fn spins(&self) -> u32 {
        match self {
            Self::Shared(shared) => shared.spins(),
            Self::Nodes(nodes) => nodes.spins(),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.spins(),
            Self::Faulty(faulty) => faulty.inner.spins(),
        }
    }

    /// Longer than a message takes that a rank sent before it left.
    fn straggling(&self) -> Duration {
        match self {
            Self::Shared(_) => Duration::ZERO,
            Self::Nodes(_) => STRAGGLING,
            #[cfg(feature = "mpi")]
            Self::Mpi(_) => STRAGGLING,
            Self::Faulty(faulty) => faulty.inner.straggling(),
        }
    }
}

/// Ranks that have left, with no message from them here.
struct Gone {
    /// When this became known of all that matter.
    since: Option<Instant>,
    straggling: Duration,
}

impl Gone {
    /// Whether everything that they sent must have arrived.
    fn are_silent(&mut self) -> bool {
        self.since.get_or_insert_with(Instant::now).elapsed() >= self.straggling
    }
}
