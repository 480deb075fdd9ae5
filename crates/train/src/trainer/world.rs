//! The ranks of a run.

use crate::{Replica, TrainError, agree};
use unisono::internals::gather;
use unisono::{Communicator, Rank, ReduceOp};

/// All ranks of a run, and the ranks that hold the same parameters as this one. These are all ranks, unless each holds a [part](crate::Parts) of the
/// model.
#[derive(Debug)]
pub(super) struct World<'a> {
    pub(super) all: &'a mut Communicator,
    /// The ranks that hold the same part as this one, and their numbers among all ranks.
    alike: Option<(Communicator, Vec<Rank>)>,
}

impl<'a> World<'a> {
    /// Groups the ranks by the part that they hold. Called by all ranks.
    pub(super) fn of(all: &'a mut Communicator, replica: &mut impl Replica) -> Result<Self, TrainError> {
        let Some(part) = replica.parts().map(|parts| parts.comm.rank()) else {
            return Ok(Self { all, alike: None });
        };
        let mut comm = all.split(Some(part), 0)?.expect("every rank has a color");
        let members = gather(&mut comm, &all.rank())?;
        Ok(Self { all, alike: Some((comm, members)) })
    }

    /// Returns whether each rank holds a part of the model.
    pub(super) fn has_parts(&self) -> bool {
        self.alike.is_some()
    }

    /// Returns the ranks that hold the same parameters as this one.
    pub(super) fn replicas(&mut self) -> &mut Communicator {
        self.alike.as_mut().map_or(&mut *self.all, |(comm, _)| comm)
    }

    /// Agrees on the result of a call among [the ranks that hold the same part](World::replicas). If it failed on some ranks, it fails on all. Called
    /// by all ranks.
    pub(super) fn settle<T>(&mut self, result: Result<T, TrainError>) -> Result<T, TrainError> {
        if self.has_parts() { agree(self.all, result) } else { result }
    }

    /// Combines the requests of all ranks before a step, if ranks hold parts of the model. Called by all ranks.
    pub(super) fn any<const N: usize>(&mut self, asks: [bool; N]) -> Result<[bool; N], TrainError> {
        if !self.has_parts() {
            return Ok(asks);
        }
        let mut asked = asks.map(u8::from);
        self.all.all_reduce(&mut asked, ReduceOp::Max)?;
        Ok(asked.map(|asked| asked > 0))
    }

    /// Converts the ranks in an error of [the replicas](World::replicas) to their numbers among all ranks.
    pub(super) fn explain(&self, mut error: TrainError) -> TrainError {
        let Some((_, members)) = &self.alike else { return error };
        match &mut error {
            TrainError::ReplicasDiffer { ranks, .. } => {
                ranks.iter_mut().for_each(|rank| *rank = members[*rank]);
            }
            TrainError::NotFinite { rank, .. } => *rank = members[*rank],
            TrainError::ModelsDiffer { message, .. } => {
                *message += &format!("; these are numbers among ranks {members:?}, which hold the same part");
            }
            _ => {}
        }
        error
    }
}
