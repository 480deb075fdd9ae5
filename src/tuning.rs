//! The constants of the cost model: the cost of messages and of single passes on this machine, which `auto` and all
//! predictions use.
//!
//! The first program on a machine measures the constants of communication within a node, and caches them for later programs. `unisono tune`
//! measures them more accurately, and also those of the network. It writes a file, which is used if `UNISONO_TUNING` names it. The
//! default constants apply to links that are not measured, and with `UNISONO_TUNING=default`.

use unisono_collectives::model::{Link, Machine};
use unisono_collectives::named;

use crate::call::Memory;
use crate::transport::{EAGER_BYTES, FAR_SEGMENT};

mod defaults;
#[cfg(feature = "tuning")]
mod file;

#[cfg(feature = "tuning")]
pub use file::{InvalidFile, read, write};

named! {
    /// The ways in which ranks communicate, by the memory that holds the array. Each has a section of constants in a tuning file.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Reach: "section" {
        /// Processes that share memory, with the array in an ordinary slice.
        ShmSlice = "shm.slice",
        /// Processes that share memory, with the array in registered memory.
        ShmRegistered = "shm.registered",
        /// Threads of one process.
        Threads = "threads",
        /// Ranks of a node that communicate by messages of MPI, or over TCP.
        Mpi = "mpi",
        /// Ranks of different nodes.
        Network = "network",
    }
}

impl Reach {
    /// Returns the section for ranks of a node over the [transport](crate::Communicator::transport) of this name.
    pub fn inside(transport: &str, memory: Memory) -> Self {
        match (transport, memory) {
            ("threads", _) => Self::Threads,
            (name, _) if !name.starts_with("shm") => Self::Mpi,
            (_, Memory::Slice | Memory::Device) => Self::ShmSlice,
            (_, Memory::Registered) => Self::ShmRegistered,
        }
    }

    /// Returns whether ranks can access each other's arrays, without messages.
    pub fn shares_memory(self) -> bool {
        !matches!(self, Self::Mpi | Self::Network)
    }
}

/// The default time of a context switch: a yield to the kernel, and the next rank's poll for its message.
const HAND_OVER_US: f64 = 1.4;

/// The constants for one [`Reach`].
#[derive(Debug, Clone, PartialEq)]
pub struct Section {
    /// The cost of messages.
    pub messages: Link,
    /// The cost per other rank in a single pass, where memory is shared ([`Machine::one_pass`]).
    pub one_pass: Option<Link>,
    /// The time of a context switch from a waiting rank to the next ([`Machine::hand_over_us`]); `None` for the default. If ranks of several
    /// nodes share memory, the value in the section of the network applies.
    pub hand_over_us: Option<f64>,
    /// The machine and the time of the measurement.
    pub measured: String,
}

/// The constants of the cost model.
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
    /// Returns a section of the constants.
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

    /// Returns the cost model of a world over the transport of this name, with arrays in this kind of memory, on nodes with
    /// this many cores.
    pub fn machine(&self, transport: &str, memory: Memory, cores: usize) -> Machine {
        let inside = Reach::inside(transport, memory);
        let network = self.section(Reach::Network);
        let Section { messages, one_pass, hand_over_us, .. } = self.section(inside).clone();
        // With several nodes, a rank that is scheduled also polls the network.
        let has_network = transport.starts_with("shm+");
        let hand_over_us = if has_network { network.hand_over_us } else { hand_over_us };
        Machine {
            intra: messages,
            one_pass: one_pass.filter(|_| inside.shares_memory()),
            inter: network.messages.clone(),
            segment_bytes: Some(FAR_SEGMENT),
            // An array outside of registered memory is copied into it in any case, and only once.
            copies: inside != Reach::ShmSlice,
            cores,
            hand_over_us: hand_over_us.unwrap_or(HAND_OVER_US),
            eager_bytes: EAGER_BYTES,
            // Included in the measured latency of messages.
            step_us: 0.0,
            call_us: 0.0,
        }
    }
}
