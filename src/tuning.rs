//! What messages and single passes cost on this machine: the constants that `auto` and every prediction go by.
//!
//! There are constants by default. `unisono tune` measures them; the file that it writes is used where
//! `UNISONO_TUNING` names it.

use unisono_collectives::model::{Link, Machine};

use crate::call::Memory;
use crate::transport::{EAGER_BYTES, FAR_SEGMENT};

mod defaults;
#[cfg(feature = "tuning")]
mod file;

#[cfg(feature = "tuning")]
pub use file::{InvalidFile, read, write};

/// How ranks reach each other, and where the array is: each has constants of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Processes that share memory, and an array in any slice.
    ShmSlice,
    /// Processes that share memory, and an array in it.
    ShmRegistered,
    /// Threads of a process.
    Threads,
    /// Ranks of a node by MPI's messages.
    Mpi,
    /// Ranks of different nodes.
    Network,
}

impl Reach {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::ShmSlice, Self::ShmRegistered, Self::Threads, Self::Mpi, Self::Network];

    /// The name of its section in a tuning file.
    pub fn name(self) -> &'static str {
        match self {
            Self::ShmSlice => "shm.slice",
            Self::ShmRegistered => "shm.registered",
            Self::Threads => "threads",
            Self::Mpi => "mpi",
            Self::Network => "network",
        }
    }

    /// How ranks of a node reach each other over the [transport](crate::Communicator::transport) of this name.
    pub fn inside(transport: &str, memory: Memory) -> Self {
        match (transport, memory) {
            ("threads", _) => Self::Threads,
            ("mpi", _) => Self::Mpi,
            (_, Memory::Slice | Memory::Device) => Self::ShmSlice,
            (_, Memory::Registered) => Self::ShmRegistered,
        }
    }

    /// Whether ranks can work on each other's arrays, without messages.
    pub fn shares_memory(self) -> bool {
        !matches!(self, Self::Mpi | Self::Network)
    }
}

/// A copy takes what it takes to put a message of this size in place: it fits the caches, and what does not is never best
/// sent as a copy.
const COPIED_BYTES: usize = 64 << 10;
/// A yield of the kernel's, and the next rank's look around.
const HAND_OVER_US: f64 = 1.4;

/// What it costs to reach another rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Section {
    /// What messages cost.
    pub messages: Link,
    /// What each other rank costs in one pass, where memory is shared ([`Machine::one_pass`]).
    pub one_pass: Option<Link>,
    /// What it takes a core to go from a rank that waits to its next one ([`Machine::hand_over_us`]); `None` for what is usual. For
    /// worlds of several nodes that share memory, that of the network.
    pub hand_over_us: Option<f64>,
    /// Where and when that was measured.
    pub measured: String,
}

/// The constants.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuning {
    sections: [Section; Reach::ALL.len()],
}

/// Measured with two ranks on a machine of two cores; the network is a typical one of 10 Gbit/s.
impl Default for Tuning {
    fn default() -> Self {
        Self { sections: Reach::ALL.map(defaults::section) }
    }
}

impl Tuning {
    /// What it costs to reach another rank in this way.
    pub fn section(&self, reach: Reach) -> &Section {
        &self.sections[reach as usize]
    }

    /// Replaces some sections.
    #[must_use]
    pub fn with(mut self, sections: impl IntoIterator<Item = (Reach, Section)>) -> Self {
        for (reach, section) in sections {
            self.sections[reach as usize] = section;
        }
        self
    }

    /// What the clock needs to know of a world over the transport of this name, with arrays in this kind of
    /// memory, on nodes of so many cores.
    pub fn machine(&self, transport: &str, memory: Memory, cores: usize) -> Machine {
        let inside = Reach::inside(transport, memory);
        let network = self.section(Reach::Network);
        let Section { messages, one_pass, hand_over_us, .. } = self.section(inside).clone();
        // Between nodes, a rank that has its turn asks MPI for messages too.
        let hand_over_us = if transport == "shm+mpi" { network.hand_over_us } else { hand_over_us };
        let copy_gb_per_s = COPIED_BYTES as f64 / messages.occupied_us(COPIED_BYTES) / 1e3;
        Machine {
            intra: messages,
            one_pass: one_pass.filter(|_| inside.shares_memory()),
            inter: network.messages.clone(),
            segment_bytes: Some(FAR_SEGMENT),
            // What is no registered memory is copied into it anyway, and only once.
            copy_gb_per_s: if inside == Reach::ShmSlice { f64::INFINITY } else { copy_gb_per_s },
            cores,
            hand_over_us: hand_over_us.unwrap_or(HAND_OVER_US),
            eager_bytes: EAGER_BYTES,
            // Measured in the messages' latency.
            step_us: 0.0,
            call_us: 0.0,
        }
    }
}
