//! The formation of a new world by the survivors of a failure. They agree on the set of survivors, and exchange bytes over the
//! status board of the old world, or over control connections if not all of them share the board.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use super::Communicator;
use crate::config::OnFailure;
use crate::control::{Gathered, Outcome};
use crate::error::{Error, Result};
use crate::status::{Gone, Guard, PIECE_BYTES, PieceNumber, SHRINKING, StatusBoard};
use crate::system::is_stopped;
use crate::transport::{Bootstrap, Deadlines, Fabric, Failure, Poll, Waiting};

impl Communicator {
    /// Returns the former number of each rank, in the communicator that [`Communicator::shrink`] consumed; empty for a communicator
    /// that `shrink` did not return.
    pub fn former_ranks(&self) -> &[Rank] {
        &self.former_ranks
    }

    /// Sets how many ranks must be left for [`Communicator::shrink`] to succeed, identical on all ranks.
    ///
    /// By default, any number of ranks of one machine continue. Of several machines, the ranks that are left continue if they are
    /// most of those that may be alive ([`Error::Partitioned`]). This number replaces that rule: if the network is divided, and
    /// both sides have at least this number of ranks, both continue. Use more than half of the ranks, unless another mechanism ends
    /// the other side.
    ///
    /// ```
    /// let ended = unisono::threads(3, |mut comm| -> unisono::Result<()> {
    ///     comm.set_minimum_ranks(3);
    ///     if comm.rank() == 2 {
    ///         return Ok(());
    ///     }
    ///     let error = comm.shrink().unwrap_err();
    ///     assert!(error.to_string().contains("2 ranks are left, fewer than the minimum, 3"), "{error}");
    ///     Ok(())
    /// });
    /// assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    /// ```
    pub fn set_minimum_ranks(&mut self, ranks: usize) {
        self.minimum_ranks = Some(ranks);
    }

    /// Ends this communicator on all ranks, and returns the bootstrap of its survivors.
    ///
    /// # Errors
    /// [`Error::Unsupported`], before anything happens, if this world cannot shrink.
    pub(crate) fn survivors(&mut self) -> Result<Survivors> {
        self.check_can_change("shrink")?;
        self.end_calls_in_flight(self.rank, SHRINKING);
        self.status.set_shrinks(self.rank);
        let engine = self.engine_owner.engine();
        engine.revoke(SHRINKING);
        let deadlines = engine.limits.usual;
        let mut survivors = Survivors::over(self.status.clone(), deadlines);
        survivors.minimum = self.minimum_ranks;
        if self.status.members().len() < self.ranks() {
            survivors.connections = self.guard.clone();
        }
        Ok(survivors)
    }

    pub(super) fn check_can_change(&self, how: &str) -> Result<()> {
        let why = if self.config.on_failure == OnFailure::EndJob {
            "a failure ends this program (`OnFailure::EndJob`): start the world with `OnFailure::ReturnError`"
        } else if self.has_mpi {
            "MPI connects its ranks, and does not survive a lost one: start them without MPI"
        } else if self.status.members().len() < self.ranks()
            && self.guard.as_ref().is_none_or(|guard| !guard.can_agree())
        {
            "its ranks do not all share memory, and their failures are not detected (UNISONO_WATCHDOG=off)"
        } else {
            return Ok(());
        };
        Err(Error::Unsupported(format!("this world cannot {how}: {why}")))
    }

    /// Returns the communicator of the survivors, without a guard. All of them call it.
    pub(crate) fn among_survivors(&mut self, survivors: &mut Survivors) -> Result<Self> {
        let config = self.config_among(&survivors.members, &format!("shrink-{}", survivors.attempt));
        let (transport, config) = Fabric::processes(survivors, Ok(config))?;
        let mut derived = self.derived(transport, &config)?;
        derived.former_ranks = survivors.members.as_slice().into();
        derived.minimum_ranks = self.minimum_ranks;
        Ok(derived)
    }
}

/// The survivors of a world: the members of an attempt to shrink it, who all-gather bytes.
#[derive(Debug)]
pub(crate) struct Survivors {
    status: StatusBoard,
    /// The guard of this rank, in a world of several nodes, where its connections decide and not the status board.
    connections: Option<Arc<dyn Guard>>,
    deadlines: Deadlines,
    /// The number of ranks that must be left, if the caller has set it.
    minimum: Option<usize>,
    /// The current attempt, from 1.
    attempt: u32,
    /// Its members.
    members: Vec<Rank>,
    /// The number of pieces that this rank has published in the attempt.
    pieces: u32,
    /// A member that has ended before the attempt was complete.
    lost_member: Option<Rank>,
}

impl Survivors {
    /// Returns the survivors of the world of a status board, before their first attempt.
    fn over(status: StatusBoard, deadlines: Deadlines) -> Self {
        let (connections, minimum, members, lost_member) = Default::default();
        Self { status, connections, deadlines, minimum, attempt: 0, members, pieces: 0, lost_member }
    }

    /// Joins the next attempt, and waits until the membership of every rank is known. Returns false if there is no next attempt,
    /// since another member has completed the previous one, of which this rank is a member too.
    ///
    /// # Errors
    /// [`Error::Missing`] if a rank that is alive does not join; [`Error::Partitioned`] if the other ranks continue or may continue
    /// without this one; [`Error::Failed`] if too few are left.
    pub(crate) fn join(&mut self) -> Result<bool> {
        (self.attempt, self.pieces, self.lost_member) = (self.attempt + 1, 0, None);
        let since = Instant::now();
        match &self.connections {
            None => self.join_on_board().map(|()| true),
            Some(guard) => match guard.agree(self.both_deadlines(), self.minimum) {
                Outcome::Agreed(view) => {
                    self.members = view.members;
                    Ok(true)
                }
                Outcome::Finished => Ok(false),
                Outcome::Missing(ranks) => Err(self.missing_far(&ranks, since)),
                Outcome::Partitioned { lost } if lost.is_empty() => Err(match self.minimum {
                    Some(_) => self.too_few_left("too few"),
                    None => self.without_others("the ranks have not agreed who is left in time".to_owned()),
                }),
                Outcome::Partitioned { lost } => Err(Error::Partitioned { rank: self.status.rank(), lost }),
            },
        }
    }

    fn both_deadlines(&self) -> (Duration, Duration) {
        (self.deadlines.timeout, self.deadlines.quiet)
    }

    fn too_few_left(&self, left: impl Display) -> Error {
        let minimum = self.minimum.unwrap_or(0);
        self.without_others(format!("{left} ranks are left, fewer than the minimum, {minimum}"))
    }

    /// Returns the error of a rank without which the others continue.
    fn without_others(&self, cause: String) -> Error {
        Error::Failed { rank: self.status.rank(), cause: Box::new(Error::Launch(cause)) }
    }

    fn missing_far(&self, ranks: &[Rank], since: Instant) -> Error {
        let (rank, waited) = (self.status.rank(), since.elapsed());
        Error::Missing { rank, other: ranks[0], process_id: None, is_stopped: false, waited }
    }

    fn join_on_board(&mut self) -> Result<()> {
        let ranks = self.status.ranks();
        let Self { status, attempt, .. } = &*self;
        if !status.join_attempt(*attempt) {
            return Err(
                self.without_others("the other ranks consider it dead, and continue without it".to_owned())
            );
        }
        self.wait(|| {
            let mut undecided = (0..ranks).filter(|&rank| status.is_member(rank, *attempt).is_none());
            undecided.next().map(|first| (first, undecided.count()))
        })?;
        let is_member = |&rank: &Rank| status.is_member(rank, *attempt) == Some(true);
        self.members = (0..ranks).filter(is_member).collect();
        let left = self.members.len();
        if self.minimum.is_some_and(|minimum| left < minimum) { Err(self.too_few_left(left)) } else { Ok(()) }
    }

    /// Returns whether a member has ended before the current attempt was complete: no member can complete it.
    pub(crate) fn has_lost_member(&self) -> bool {
        self.lost_member.is_some()
    }

    /// Ends the attempt: either all members complete it, or none does.
    pub(crate) fn finish(&mut self) -> Result<()> {
        match &self.connections {
            None => self.all_gather(&[]).map(drop),
            Some(guard) => {
                let since = Instant::now();
                let gathered = guard.finish(self.both_deadlines());
                self.gathered(gathered, since).map(drop)
            }
        }
    }

    /// Returns the bytes of all members, gathered over their connections.
    fn gathered(&mut self, gathered: Gathered, since: Instant) -> Result<Vec<Vec<u8>>> {
        match gathered {
            Gathered::All(all) => Ok(all),
            Gathered::Missing(ranks) => Err(self.missing_far(&ranks, since)),
            Gathered::Failed(rank) => {
                self.lost_member = Some(rank);
                Err(has_ended(rank))
            }
        }
    }

    /// Publishes the next piece of these bytes. Returns the piece of each member, and the number of bytes of it and the following pieces.
    fn exchange(&mut self, bytes: &[u8]) -> Result<Vec<(Vec<u8>, usize)>> {
        self.pieces += 1;
        let number = PieceNumber { attempt: self.attempt, piece: self.pieces };
        self.status.publish_piece(number, bytes);
        let mut pieces = vec![None; self.members.len()];
        let mut gone = None;
        self.wait(|| {
            let mut missing = None;
            for (slot, &rank) in pieces.iter_mut().zip(&self.members).filter(|(slot, _)| slot.is_none()) {
                match self.status.piece(rank, number) {
                    Ok(Some(piece)) => *slot = Some(piece),
                    Ok(None) => missing = Some((rank, missing.map_or(0, |(_, more)| more + 1))),
                    Err(Gone) => gone = Some(rank),
                }
            }
            missing.filter(|_| gone.is_none())
        })?;
        self.lost_member = gone;
        gone.map_or_else(|| Ok(pieces.into_iter().flatten().collect()), |rank| Err(has_ended(rank)))
    }

    /// Waits until `missing` returns `None`, and not a missing rank with the number of ranks after it.
    fn wait(&self, mut missing: impl FnMut() -> Option<(Rank, usize)>) -> Result<()> {
        let mut before = None;
        let poll = || {
            Ok(match missing() {
                None => Poll::Done(()),
                Some(now) if before == Some(now) => Poll::WaitsFor(now.0),
                now => {
                    before = now;
                    Poll::Progress
                }
            })
        };
        let waiting = Waiting::new(0, &self.deadlines, &self.status).after_failure();
        waiting.until(poll, |_, _| Ok(())).map_err(|failure| match failure {
            Failure::Timeout { other, waited } => {
                let (rank, process_id) = (self.status.rank(), self.status.process_id(other));
                let is_stopped = is_stopped(process_id);
                Error::Missing { rank, other, process_id: Some(process_id), is_stopped, waited }
            }
            Failure::Error(error) => error,
            failure => unreachable!("nothing else is checked: {failure:?}"),
        })
    }
}

impl Bootstrap for Survivors {
    fn rank(&self) -> Rank {
        let own = self.status.rank();
        self.members.iter().position(|&rank| rank == own).expect("a rank is a member of what it has joined")
    }

    fn ranks(&self) -> usize {
        self.members.len()
    }

    /// # Errors
    /// As [`Survivors::join`]; any error if a member has [ended](Survivors::has_lost_member).
    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        if let Some(guard) = &self.connections {
            let since = Instant::now();
            let gathered = guard.gather(own.to_vec(), self.both_deadlines());
            return self.gathered(gathered, since);
        }
        let mut all = vec![Vec::new(); self.members.len()];
        let mut rest = own;
        loop {
            let pieces = self.exchange(rest)?;
            rest = &rest[rest.len().min(PIECE_BYTES)..];
            all.iter_mut().zip(&pieces).for_each(|(all, (piece, _))| all.extend_from_slice(piece));
            if pieces.iter().all(|&(_, rest)| rest <= PIECE_BYTES) {
                return Ok(all);
            }
        }
    }
}

fn has_ended(rank: Rank) -> Error {
    Error::Launch(format!("rank {rank} has ended while the survivors met"))
}

#[cfg(all(test, not(loom)))]
mod tests;
