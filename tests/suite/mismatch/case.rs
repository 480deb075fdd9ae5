//! Random mismatches between ranks, and the errors that ranks must report.

use std::time::{Duration, Instant};

use unisono::{Algorithm, Choice, Communicator, DType, Error, Method, Operation, ReduceOp, Topology, Vendor};

use crate::common::calls::{Made, Own, Ranks};
use crate::common::memory::Memory;
use crate::common::vendors;
use unisono_testing::random::Random;

/// The time after which a rank without an error counts as hanging.
pub(super) const DEADLINE: Duration = Duration::from_secs(40);
/// The timeout of ranks. A mismatch that only the timeout ends was not detected.
const TIMEOUT: Duration = Duration::from_secs(20);

const KINDS: [Kind; 10] = [
    Kind::Count,
    Kind::DType,
    Kind::Reduction,
    Kind::Operation,
    Kind::Root,
    Kind::Algorithm,
    Kind::Label,
    Kind::Swapped,
    Kind::Missing,
    Kind::Doubled,
];

const LABELS: [&str; 4] = ["", "", "loss", "bucket 2"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Count,
    DType,
    Reduction,
    Operation,
    Root,
    Algorithm,
    Label,
    /// Two calls in another order.
    Swapped,
    /// A call that is not made.
    Missing,
    /// A call that is made twice.
    Doubled,
}

/// Two orders of calls, and the ranks that make each.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) ranks: usize,
    #[expect(dead_code, reason = "for messages")]
    kind: Kind,
    most: Vec<Made>,
    few: Vec<Made>,
    /// Whether each rank belongs to the minority.
    is_of_few: Vec<bool>,
    /// Whether all ranks can read each other's earlier calls.
    share_memory: bool,
    own: Random,
}

/// The observations of ranks.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    /// Whether the rank detected the mismatch itself, or was notified of it.
    pub(super) own: u64,
    pub(super) notified: u64,
    /// The calls that it completed before.
    pub(super) early: u64,
}

impl Found {
    /// Returns the observations of a rank that was notified.
    pub(super) fn notified() -> Self {
        Self { notified: 1, ..Self::default() }
    }

    pub(super) fn print(self) {
        let Self { own, notified, early } = self;
        println!("found {own} {notified} {early}");
    }

    pub(super) fn read(line: &str) -> Option<Self> {
        let mut numbers = line.strip_prefix("found ")?.split(' ').map(|number| number.parse().unwrap());
        Some(Self { own: numbers.next()?, notified: numbers.next()?, early: numbers.next()? })
    }
}

/// Returns the ranks of a world, two to five.
fn ranks(case: u64) -> usize {
    2 + (case % 4) as usize
}

/// Ten cases in a row are one of each kind, and forty each kind in worlds of each size.
fn kind(case: u64) -> Kind {
    KINDS[((case + case / 20) % KINDS.len() as u64) as usize]
}

impl Case {
    pub(super) fn new(seed: u64, number: u64, world: &str) -> Self {
        let has_nodes = matches!(world, "shm+mpi" | "shm+tcp" | "shm+ucx");
        let ranks = if has_nodes { 4 } else { ranks(number) };
        let mut random = Random::of(seed, number);
        let topology = if has_nodes { Topology::uniform(2, 2) } else { Topology::single_node(ranks) };
        let draw = Draw { topology, has_mpi: matches!(world, "shm" | "mpi" | "shm+mpi") };
        let kind = kind(number);
        let (most, few) = draw.orders(kind, &mut random);
        let before: Vec<_> = (0..random.below(3)).map(|_| draw.call(&mut random)).collect();
        // A rank may have completed the first barrier when another detects the mismatch in it.
        let barriers = [Made::barrier(), Made::barrier()];
        let whole = |calls: Vec<Made>| before.iter().cloned().chain(calls).chain(barriers.clone()).collect();
        let mut is_of_few = vec![false; ranks];
        let few_ranks = 1 + random.below(ranks / 2);
        (0..few_ranks).for_each(|_| is_of_few[random.below(ranks)] = true);
        let (most, few) = (whole(most), whole(few));
        let share_memory = matches!(world, "threads" | "processes" | "shm");
        Self { ranks, kind, most, few, is_of_few, share_memory, own: random }
    }

    fn calls(&self, rank: usize) -> &[Made] {
        if self.is_of_few[rank] { &self.few } else { &self.most }
    }

    /// Makes this rank's calls until one fails.
    ///
    /// # Panics
    /// If a result exists that cannot exist, or no error names both calls.
    pub(super) fn play(&self, comm: &mut Communicator) -> Found {
        comm.set_timeout(TIMEOUT);
        let rank = comm.rank();
        let mut own = Random::of(self.own.clone().bits(), rank as u64);
        let mut early = 0;
        for (sequence, call) in self.calls(rank).iter().enumerate() {
            own.delay();
            let agree = if self.most.get(sequence) == self.few.get(sequence) {
                Ranks::Agree
            } else {
                Ranks::Disagree
            };
            let of_rank = Own { memory: own.one_of(&Memory::ALL), in_flight: own.once_in(3) };
            let started = Instant::now();
            let Err(error) = call.make(comm, of_rank, sequence, agree) else {
                early += u64::from(agree == Ranks::Disagree);
                continue;
            };
            let report = format!("rank {rank} after {:?}: {error}\n{self:?}", started.elapsed());
            assert!(self.names_both(&error.to_string()), "{report}");
            assert!(matches!(comm.barrier(), Err(Error::Aborted { .. })), "it continues: {report}");
            return match error {
                Error::Mismatch { .. } => Found { own: 1, early, ..Found::default() },
                Error::Aborted { .. } => Found { early, ..Found::notified() },
                _ => panic!("{report}"),
            };
        }
        panic!("rank {rank} saw nothing: {self:?}");
    }

    /// Returns whether a message names two ranks and their calls. If ranks do not share memory and have completed the differing
    /// calls, one call is enough.
    pub(super) fn names_both(&self, message: &str) -> bool {
        let calls = |rank: usize| {
            self.calls(rank).iter().enumerate().map(move |(sequence, call)| (rank, call.describe(sequence)))
        };
        // The names of other ranks' labels are known only if ranks share memory.
        let unnamed = |called: &str| match called.split('"').collect::<Vec<_>>()[..] {
            [before, _, after] => format!("{before}with another label{after}"),
            _ => called.to_owned(),
        };
        let has_called =
            |rank: usize, called: &str| message.contains(&format!("rank {rank} called {called}"));
        let is_reported =
            |rank: usize, called: &str| has_called(rank, called) || has_called(rank, &unnamed(called));
        let after = |called: &str| message.contains(&format!("(after {called})"));
        if !self.share_memory && message.contains(" after other calls") {
            return (0..self.ranks)
                .flat_map(calls)
                .any(|(_, called)| after(&called) || after(&unnamed(&called)));
        }
        let all: Vec<_> =
            (0..self.ranks).flat_map(calls).filter(|(rank, called)| is_reported(*rank, called)).collect();
        all.iter().any(|(rank, called)| all.iter().any(|(other, theirs)| other != rank && theirs != called))
    }
}

/// Draws calls for a world.
struct Draw {
    topology: Topology,
    has_mpi: bool,
}

impl Draw {
    fn call(&self, random: &mut Random) -> Made {
        let ranks = self.topology.ranks();
        let mut operation = random.one_of(&Operation::all(random.clone().below(ranks)));
        if random.once_in(2) {
            operation = Operation::AllReduce;
        }
        let longest = random.one_of(&[1, 8, 2_000, 20_000, 150_000]);
        let mut call = Made {
            operation,
            choice: Choice::Auto,
            dtype: random.one_of(&DType::ALL),
            op: random.one_of(&ReduceOp::ALL),
            count: random.below(longest) + random.below(2),
            label: random.one_of(&LABELS),
        };
        self.choose(&mut call, random);
        call
    }

    /// Sets a choice that can carry out a call, and a valid count.
    fn choose(&self, call: &mut Made, random: &mut Random) {
        let choices = self.choices(call);
        if !choices.contains(&call.choice) {
            call.choice = random.one_of(&choices);
        }
        let is_mean_of_scan =
            matches!(call.operation, Operation::Scan | Operation::ExclusiveScan) && call.op == ReduceOp::Mean;
        if is_mean_of_scan || !call.op.is_defined_for(call.dtype) {
            call.op = ReduceOp::Sum;
        }
        if call.operation == Operation::AllToAll {
            call.count -= call.count % self.topology.ranks();
        }
    }

    fn choices(&self, call: &Made) -> Vec<Choice> {
        let offers = |algorithm: &Algorithm| algorithm.plan(call.operation, &self.topology, 0).is_some();
        let mut choices: Vec<_> = Algorithm::ALL.into_iter().filter(offers).map(Choice::from).collect();
        if self.has_mpi && call.operation == Operation::AllReduce {
            let in_nodes = [Algorithm::HierarchicalCopy, Algorithm::Rail];
            let in_nodes = in_nodes.map(|algorithm| Choice::from(Method::InNodes(algorithm, Vendor::Mpi)));
            choices.extend(
                in_nodes.into_iter().filter(|choice| !vendors::may_refuse(choice, call.dtype, call.op)),
            );
        }
        choices
    }

    /// Returns the calls of the majority and of the minority of ranks, in their orders.
    fn orders(&self, kind: Kind, random: &mut Random) -> (Vec<Made>, Vec<Made>) {
        loop {
            let one = self.call(random);
            let mut other = self.call(random);
            match kind {
                Kind::Swapped if one != other => return (vec![one.clone(), other.clone()], vec![other, one]),
                Kind::Missing => return (vec![one, other.clone()], vec![other]),
                Kind::Doubled => return (vec![one.clone(), other.clone()], vec![one.clone(), one, other]),
                _ => {}
            }
            let drawn = std::mem::replace(&mut other, one.clone());
            match kind {
                Kind::Label => other.label = drawn.label,
                Kind::Count => other.count = drawn.count,
                Kind::DType => other.dtype = drawn.dtype,
                Kind::Reduction if one.reduces() => other.op = drawn.op,
                Kind::Operation => other.operation = drawn.operation,
                Kind::Root => {
                    let root = random.below(self.topology.ranks());
                    let same = |operation: &Operation| operation.name() == one.operation.name();
                    other.operation =
                        Operation::all(root).into_iter().find(same).expect("the list has every operation");
                }
                Kind::Algorithm => other.choice = random.one_of(&self.choices(&one)),
                Kind::Reduction | Kind::Swapped | Kind::Missing | Kind::Doubled => continue,
            }
            self.choose(&mut other, random);
            if one != other && one.describe(0) != other.describe(0) {
                return (vec![one], vec![other]);
            }
        }
    }
}
