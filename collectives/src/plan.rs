//! Plans: what one rank does in one collective, phase by phase.

use crate::schedule::Schedule;
use crate::world::{Group, Rank};

/// One part of a plan: a group of ranks that run a schedule among themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phase {
    /// What the phase does, for a person: "reduce in the node".
    pub name: &'static str,
    /// The ranks that take part; the schedule's ranks are positions in this group.
    pub group: Group,
    /// What this rank does in it.
    pub schedule: Schedule,
}

/// What one rank does in one collective: phases in order, all over the same chunks of the same buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    chunk_count: usize,
    phases: Vec<Phase>,
}

impl Plan {
    /// A plan of these phases. Those in which this rank has nothing to do are left out.
    ///
    /// # Panics
    /// If a phase cuts the buffer into another number of chunks.
    pub fn new(chunk_count: usize, phases: impl IntoIterator<Item = Phase>) -> Self {
        let phases: Vec<_> = phases.into_iter().filter(|phase| !phase.schedule.steps().is_empty()).collect();
        for phase in &phases {
            assert_eq!(phase.schedule.chunk_count(), chunk_count, "phase {:?}", phase.name);
        }
        Self { chunk_count, phases }
    }

    /// A plan of a single phase in which all ranks of a world take part.
    pub fn single(name: &'static str, world: Group, schedule: Schedule) -> Self {
        Self::new(schedule.chunk_count(), [Phase { name, group: world, schedule }])
    }

    /// How many chunks the buffer is cut into; the same on every rank.
    pub fn chunk_count(&self) -> usize {
        self.chunk_count
    }

    /// The phases, in order.
    pub fn phases(&self) -> &[Phase] {
        &self.phases
    }

    /// All phases as one schedule among world ranks: what is verified, priced, drawn and simulated.
    pub fn flattened(&self) -> Schedule {
        let world = |phase: &Phase| {
            let group = phase.group.clone();
            phase.schedule.clone().renamed(move |position: Rank| group.member(position))
        };
        self.phases.iter().map(world).fold(Schedule::new(self.chunk_count, []), Schedule::then)
    }
}
