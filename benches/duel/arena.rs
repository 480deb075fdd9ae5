//! The contenders of a case, and the arrays that they work on.

use std::ops::Range;

use serde::Serialize;
use unisono::mpi::topology::SimpleCommunicator;
use unisono::mpi::traits::{Communicator as _, Root as _};
use unisono::{Communicator, Planned, ReduceOp, Registered};

use super::case::{Case, Operation, Place};
use super::floor::Floor;
use super::shared::Barrier;
use super::vendor::Vendor;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Contender {
    /// Unisono, on registered memory.
    Registered,
    /// Unisono, on a slice.
    Slices,
    /// A planned call of Unisono, on a slice of its own.
    Planned,
    /// MPI's collective, on the same slices.
    Mpi,
    /// The bare loop over arrays in shared memory.
    FloorJoint,
    /// The bare loop over the same slices, exchanged in blocks.
    FloorExchange,
}

pub(crate) struct Arena<'a> {
    pub(crate) case: Case,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) contenders: Vec<Contender>,
    pub(crate) barrier: Barrier,
    comm: &'a mut Communicator,
    vendor: Vendor,
    /// The root of the next broadcast. Roots rotate: a fixed root could run ahead of the others.
    root: usize,
    /// The result is in one of the next two, or in the floor's memory. Registered arrays are used alternately.
    registered: Vec<Registered<f32>>,
    /// The registered array of the latest call.
    current: usize,
    slice: Vec<f32>,
    /// The input, if the call is out of place.
    input: Vec<f32>,
    floor: Option<Floor>,
    planned: Option<Planned<Vec<f32>>>,
}

impl<'a> Arena<'a> {
    /// Sets up a case, whose calls are on the group, if there is one; `None` if the machine lacks memory for the arrays of all ranks and MPI's
    /// buffers. All ranks call it.
    pub(crate) fn new(
        world: &SimpleCommunicator,
        comm: &'a mut Communicator,
        (group, arrays): (Option<&'a mut Communicator>, usize),
        case: Case,
    ) -> Option<Self> {
        let (rank, ranks) = (world.rank() as usize, world.size() as usize);
        // One part for each rank.
        let count = match case.operation {
            Operation::Barrier => 0,
            _ => (case.size_bytes / size_of::<f32>()).max(1).next_multiple_of(case.part_of(ranks)),
        };
        let mut needed = [((6 + arrays) * count * size_of::<f32>() * ranks) as u64, available_bytes()];
        world.process_at_rank(0).broadcast_into(&mut needed);
        if needed[0] > needed[1] / 2 {
            return None;
        }
        let has_floor = (case.operation, case.place, ranks) == (Operation::AllReduce, Place::InPlace, 2);
        let mut contenders = vec![Contender::Registered, Contender::Slices, Contender::Mpi];
        if case.operation == Operation::Barrier {
            contenders.remove(1);
        }
        let has_plan = (case.operation, case.place) == (Operation::AllReduce, Place::InPlace);
        if has_plan {
            contenders.push(Contender::Planned);
        }
        if has_floor {
            contenders.extend([Contender::FloorJoint, Contender::FloorExchange]);
        }
        let is_apart = case.place == Place::OutOfPlace;
        let registered = (0..arrays).map(|_| comm.alloc(count).expect("memory for the duel")).collect();
        let comm = group.unwrap_or(comm);
        let plan = |comm: &mut Communicator| {
            let sum = Some(ReduceOp::Sum);
            comm.plan(unisono::Operation::AllReduce, sum, vec![0.0; count])
                .expect("all ranks plan the same call")
        };
        Some(Self {
            case,
            rank,
            ranks,
            contenders,
            barrier: Barrier::new(world),
            registered,
            planned: has_plan.then(|| plan(comm)),
            current: 0,
            slice: vec![0.0; count],
            input: vec![0.0; if is_apart { count } else { 0 }],
            floor: has_floor.then(|| Floor::new(world, count)),
            vendor: Vendor::new(world),
            root: 0,
            comm,
        })
    }

    /// Returns a rank's part of the array.
    fn part(&self, rank: usize) -> Range<usize> {
        let size = self.slice.len() / self.ranks;
        rank * size..(rank + 1) * size
    }

    /// Returns the array with a contender's result.
    fn array(&mut self, contender: Contender) -> &mut [f32] {
        match (contender, &mut self.floor) {
            (Contender::Registered, _) => &mut self.registered[self.current],
            (Contender::FloorJoint, Some(floor)) => floor.array(),
            (Contender::Planned, _) => self.planned.as_mut().expect("there is a plan"),
            _ => &mut self.slice,
        }
    }

    /// Writes a contender's input.
    pub(crate) fn write(&mut self, contender: Contender, value: impl Fn(usize) -> f32) {
        let fill = |array: &mut [f32]| {
            for (index, element) in array.iter_mut().enumerate() {
                *element = value(index);
            }
        };
        match (self.case.place, contender) {
            (Place::OutOfPlace, _) => fill(&mut self.input),
            (Place::InPlace, Contender::Registered) => {
                self.registered.iter_mut().for_each(|array| fill(array));
            }
            (Place::InPlace, _) => fill(self.array(contender)),
        }
    }

    /// Makes one call.
    pub(crate) fn run(&mut self, contender: Contender) {
        self.root = (self.root + 1) % self.ranks;
        self.current = (self.current + 1) % self.registered.len();
        match contender {
            Contender::Mpi => self.run_mpi(),
            Contender::Registered | Contender::Slices => self.run_ours(contender),
            Contender::Planned => {
                let planned = self.planned.as_mut().expect("there is a plan");
                planned.start(self.comm).expect("all ranks start it");
                planned.wait(self.comm).expect("all ranks have started it");
            }
            Contender::FloorJoint => self.floor.as_mut().expect("there is a floor").joint(),
            Contender::FloorExchange => {
                self.floor.as_mut().expect("there is a floor").exchange(&mut self.slice);
            }
        }
    }

    fn run_mpi(&mut self) {
        let own = self.part(self.rank);
        let Self { case, vendor, root, slice, input, rank, .. } = self;
        let apart = (case.place == Place::OutOfPlace).then_some(&input[..]);
        match case.operation {
            Operation::AllReduce => vendor.all_reduce(apart, slice),
            Operation::AllToAll => vendor.all_to_all(apart, slice),
            Operation::AllGather => vendor.all_gather(apart.map(|input| &input[own]), slice),
            Operation::Broadcast => vendor.broadcast(slice, *root),
            Operation::Gather => vendor.gather(*rank, slice, *root),
            Operation::Barrier => vendor.barrier(),
        }
    }

    /// Runs Unisono, which works in place; out of place is a copy and a call.
    fn run_ours(&mut self, contender: Contender) {
        let own = self.part(self.rank);
        let Self { case, comm, root, registered, current, slice, input, .. } = self;
        let array: &mut [f32] =
            if contender == Contender::Registered { &mut registered[*current] } else { slice };
        match (case.place, case.operation) {
            (Place::InPlace, _) => {}
            (Place::OutOfPlace, Operation::AllGather) => {
                array[own.clone()].copy_from_slice(&input[own]);
            }
            (Place::OutOfPlace, _) => array.copy_from_slice(input),
        }
        let done = match case.operation {
            Operation::AllReduce => comm.all_reduce(array, ReduceOp::Sum).map(drop),
            Operation::AllToAll => comm.all_to_all(array).map(drop),
            Operation::AllGather => comm.all_gather(array).map(drop),
            Operation::Broadcast => comm.broadcast(array, *root).map(drop),
            Operation::Gather => comm.gather(array, *root).map(drop),
            Operation::Barrier => comm.barrier(),
        };
        done.expect("all ranks make the same calls");
    }

    /// Runs a contender on a known input, and checks the result.
    ///
    /// # Panics
    /// If the result is wrong.
    pub(crate) fn check(&mut self, contender: Contender) {
        let (rank, ranks, case) = (self.rank, self.ranks, self.case);
        let part = self.part(0).len().max(1);
        let given = |rank: usize, index: usize| ((3 * rank + index / part) % 8) as f32;
        self.write(contender, |index| given(rank, index));
        self.run(contender);
        let root = self.root;
        let expected = |index: usize| match case.operation {
            Operation::AllReduce => (0..ranks).map(|rank| given(rank, index)).sum(),
            Operation::AllToAll => given(index / part, rank * part),
            Operation::AllGather | Operation::Gather => given(index / part, index),
            Operation::Broadcast => given(root, index),
            Operation::Barrier => 0.0,
        };
        let gathers_nothing = case.operation == Operation::Gather && rank != root;
        let checked = if gathers_nothing { self.part(rank) } else { 0..self.slice.len() };
        let array = self.array(contender);
        for (index, &element) in array.iter().enumerate().take(checked.end).skip(checked.start) {
            assert_eq!(element, expected(index), "element {index} of {contender:?} in {case:?}");
        }
    }
}

impl Case {
    /// Returns the number of equal parts of the array.
    fn part_of(self, ranks: usize) -> usize {
        match self.operation {
            Operation::AllToAll | Operation::AllGather | Operation::Gather => ranks,
            Operation::AllReduce | Operation::Broadcast | Operation::Barrier => 1,
        }
    }
}

/// Returns the available memory of the machine.
fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kibibytes.map_or(u64::MAX, |kibibytes| kibibytes << 10)
}
