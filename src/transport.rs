//! How a step's messages get from rank to rank: a closed menu, one file each.
//!
//! A transport moves bytes between ranks, in order, and checks that both ends are in the same collective. It knows nothing of
//! schedules, and of elements only what [`Target`] does with them.

use std::time::{Duration, Instant};

use bytemuck::{Pod, Zeroable};
use unisono_collectives::{Algorithm, Operation, Rank, Topology};

use crate::call::Call;
use crate::dtype::DType;
use crate::error::{Error, Place};
use crate::reduce::{Kernel, ReduceOp};

#[cfg(feature = "mpi")]
pub(crate) mod mpi;
pub(crate) mod threads;

/// What every message begins with: which collective it belongs to, in the eyes of its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Header {
    sequence: u64,
    count: u64,
    /// The size of this message's payload.
    size_bytes: u64,
    /// The root, or `u32::MAX`.
    root: u32,
    operation: u8,
    /// The reduction, or `u8::MAX`.
    op: u8,
    dtype: u8,
    algorithm: u8,
}

impl Header {
    pub(crate) fn new(sequence: u64, call: &Call, algorithm: Algorithm) -> Self {
        Self {
            sequence,
            count: call.count as u64,
            size_bytes: 0,
            root: call.operation.root().map_or(u32::MAX, |root| root as u32),
            operation: operation_code(call.operation),
            op: call.op.map_or(u8::MAX, |op| op as u8),
            dtype: call.dtype as u8,
            algorithm: algorithm as u8,
        }
    }

    fn of_size(self, size_bytes: usize) -> Self {
        Self { size_bytes: size_bytes as u64, ..self }
    }

    /// What the sender called, in words.
    fn describe(&self) -> String {
        let name = |names: &[&'static str], code: u8| names.get(usize::from(code)).copied().unwrap_or("?");
        let operation = name(&Operation::all(0).map(Operation::name), self.operation);
        let dtype = name(&DType::ALL.map(DType::name), self.dtype);
        let algorithm = name(&Algorithm::ALL.map(Algorithm::name), self.algorithm);
        let mut text = format!("{operation} #{} of {} {dtype}", self.sequence, self.count);
        if self.op != u8::MAX {
            text += &format!(", {}", name(&ReduceOp::ALL.map(ReduceOp::name), self.op));
        }
        if self.root != u32::MAX {
            text += &format!(", root {}", self.root);
        }
        text + &format!(", by {algorithm}")
    }

    /// Holds the header of a message from rank `other` against what is expected of it.
    fn check(&self, theirs: &Self, other: Rank) -> Result<(), Failure> {
        if theirs == self {
            return Ok(());
        }
        let (mut ours, mut theirs_called) = (self.describe(), theirs.describe());
        if ours == theirs_called {
            ours += &format!(" (a message of {} bytes)", self.size_bytes);
            theirs_called += &format!(" (a message of {} bytes)", theirs.size_bytes);
        }
        Err(Failure::Mismatch { ours, other, theirs: theirs_called })
    }

    /// Looks at the header of a message that is not awaited now, but tells what rank `other` is doing: two ranks that
    /// are in the same place of the order of calls and call different things may otherwise wait for each other for ever.
    fn check_overheard(&self, theirs: &Self, other: Rank) -> Result<(), Failure> {
        let same_size = theirs.of_size(self.size_bytes as usize);
        if theirs.sequence == self.sequence { self.check(&same_size, other) } else { Ok(()) }
    }
}

fn operation_code(operation: Operation) -> u8 {
    let position = Operation::all(0).iter().position(|other| other.name() == operation.name());
    position.expect("all operations are there") as u8
}

/// Bytes for another rank.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) to: Rank,
    pub(crate) bytes: &'a [u8],
}

/// Where bytes from another rank go.
#[derive(Debug)]
pub(crate) struct Incoming<'a> {
    pub(crate) from: Rank,
    pub(crate) target: Target<'a>,
}

/// What happens to bytes that arrive. They may arrive in several pieces of whole elements.
#[derive(Debug)]
pub(crate) enum Target<'a> {
    /// They take the place of what is here, as they are.
    Place(&'a mut [u8]),
    /// A kernel works them into what is held.
    Apply {
        held: &'a mut [u8],
        /// The size of an element that is held.
        held_size_bytes: usize,
        /// The size of an element that arrives.
        wire_size_bytes: usize,
        kernel: Kernel,
    },
}

impl Target<'_> {
    /// How many bytes must arrive.
    pub(crate) fn size_bytes(&self) -> usize {
        match self {
            Self::Place(place) => place.len(),
            Self::Apply { held, held_size_bytes, wire_size_bytes, .. } => {
                held.len() / held_size_bytes * wire_size_bytes
            }
        }
    }

    /// Takes in the piece that begins `offset_bytes` after the first byte.
    pub(crate) fn accept(&mut self, offset_bytes: usize, piece: &[u8]) {
        match self {
            Self::Place(place) => place[offset_bytes..offset_bytes + piece.len()].copy_from_slice(piece),
            Self::Apply { held, held_size_bytes, wire_size_bytes, kernel } => {
                let held_at = |wire_bytes: usize| wire_bytes / *wire_size_bytes * *held_size_bytes;
                kernel(&mut held[held_at(offset_bytes)..held_at(offset_bytes + piece.len())], piece);
            }
        }
    }
}

/// Why an exchange did not succeed; the executor knows where that was.
#[derive(Debug)]
pub(crate) enum Failure {
    Timeout { other: Rank, waited: Duration },
    Mismatch { ours: String, other: Rank, theirs: String },
    Left { other: Rank },
    Error(Error),
}

impl Failure {
    /// The same as an error, with the place where it happened.
    pub(crate) fn at(self, at: Place) -> Error {
        let at = Box::new(at);
        match self {
            Self::Timeout { other, waited } => Error::Timeout { at, other, waited },
            Self::Mismatch { ours, other, theirs } => Error::Mismatch { at, ours, other, theirs },
            Self::Left { other } => Error::Left { at, other },
            Self::Error(error) => error,
        }
    }
}

/// Waits between two looks at something that another rank will change: spins, then yields, and sleeps after a while.
///
/// A yield hands over to a rank on the same core in about a microsecond, where spinning would use up its time slice.
#[derive(Debug)]
pub(crate) struct Waiting {
    looks: u32,
    spins: u32,
    started: Option<Instant>,
    timeout: Duration,
}

/// After this many looks in vain, the clock is read at every look.
const LOOKS_BETWEEN_CLOCKS: u32 = 256;
/// From then on a rank sleeps between looks: it is not a message in flight that it waits for.
const AWAKE: Duration = Duration::from_millis(200);
const NAP: Duration = Duration::from_micros(50);

impl Waiting {
    /// `spins` looks without giving way; 0 where ranks outnumber cores.
    pub(crate) fn new(spins: u32, timeout: Duration) -> Self {
        Self { looks: 0, spins, started: None, timeout }
    }

    /// Lets a moment pass; the time waited, once it is more than the deadline allows.
    #[inline]
    pub(crate) fn pause(&mut self) -> Result<(), Duration> {
        self.looks = self.looks.wrapping_add(1);
        if self.looks < self.spins {
            std::hint::spin_loop();
            return Ok(());
        }
        std::thread::yield_now();
        if self.looks.is_multiple_of(LOOKS_BETWEEN_CLOCKS) || self.is_patient() {
            self.read_clock()
        } else {
            Ok(())
        }
    }

    /// Whether the wait is already much longer than a message takes.
    pub(crate) fn is_patient(&self) -> bool {
        self.started.is_some_and(|started| started.elapsed() > AWAKE)
    }

    #[cold]
    fn read_clock(&mut self) -> Result<(), Duration> {
        let waited = self.started.get_or_insert_with(Instant::now).elapsed();
        if waited > AWAKE {
            std::thread::sleep(NAP);
        }
        if waited > self.timeout { Err(waited) } else { Ok(()) }
    }
}

/// How long to spin before yielding: not at all where ranks outnumber the cores.
pub(crate) fn spins(ranks: usize, cores: usize) -> u32 {
    if ranks > cores { 0 } else { 2000 }
}

/// How many cores this process may use.
pub(crate) fn usable_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The transport of a communicator.
#[derive(Debug)]
pub(crate) enum Transport {
    Threads(threads::Threads),
    #[cfg(feature = "mpi")]
    Mpi(Box<mpi::Mpi>),
}

impl Transport {
    /// The name in every table.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Threads(_) => "threads",
            #[cfg(feature = "mpi")]
            Self::Mpi(_) => "mpi",
        }
    }

    pub(crate) fn rank(&self) -> Rank {
        match self {
            Self::Threads(threads) => threads.rank(),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.rank(),
        }
    }

    /// How many cores all ranks of this node may use together.
    pub(crate) fn node_cores(&self) -> usize {
        match self {
            Self::Threads(_) => usable_cores(),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.node_cores(),
        }
    }

    /// Where the ranks live, as far as this transport can see.
    pub(crate) fn topology(&self) -> Topology {
        match self {
            Self::Threads(threads) => Topology::single_node(threads.ranks()),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.topology().clone(),
        }
    }

    /// Sends and receives at the same time; returns when both are done, and the bytes sent may change again.
    pub(crate) fn exchange(
        &mut self,
        header: &Header,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
        timeout: Duration,
    ) -> Result<(), Failure> {
        match self {
            Self::Threads(threads) => threads.exchange(header, outgoing, incoming, timeout),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.exchange(header, outgoing, incoming, timeout),
        }
    }

    /// Tells the other ranks that this one cannot go on, where they can be told.
    pub(crate) fn fail(&mut self, cause: &str) {
        match self {
            Self::Threads(threads) => threads.fail(cause),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.fail(cause),
        }
    }
}
