//! The constants of the cost model: the cost of messages and of single passes on this machine, which `auto` and all
//! predictions use.
//!
//! The first program on a machine measures the constants of communication within a node, and caches them for later programs. `unisono tune`
//! measures them more accurately, and also those of the network. It writes a file, which is used if `UNISONO_TUNING` names it. The
//! default constants apply to links that are not measured, and with `UNISONO_TUNING=default`.

use unisono_collectives::model::{Link, Machine, Range};
use unisono_collectives::named;

use crate::call::Memory;
use crate::transport::{EAGER_BYTES, FAR_SEGMENT, STAGING_BYTES};

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
        Self { sections: Reach::ALL.map(default_section) }
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

    /// Returns the constants of the text of a tuning file; the default ones for an empty text.
    pub(crate) fn of_text(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        #[cfg(feature = "tuning")]
        return text.parse().map_err(|error: InvalidFile| error.to_string());
        #[cfg(not(feature = "tuning"))]
        Err("this program was built without the feature `tuning`, and reads no file".to_owned())
    }

    /// Returns the text of a tuning file with these constants; empty without the feature that reads one, where they are the default ones.
    pub(crate) fn text(&self) -> String {
        #[cfg(feature = "tuning")]
        return write(&Reach::ALL.map(|reach| (reach, self.section(reach).clone())));
        #[cfg(not(feature = "tuning"))]
        String::new()
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
            staging_bytes: (inside == Reach::ShmSlice).then_some(STAGING_BYTES),
            cores,
            hand_over_us: hand_over_us.unwrap_or(HAND_OVER_US),
            eager_bytes: EAGER_BYTES,
            // Included in the measured latency of messages.
            step_us: 0.0,
            call_us: 0.0,
        }
    }
}

fn default_section(reach: Reach) -> Section {
    let (messages, one_pass): (&[Range], Option<&[Range]>) = match reach {
        Reach::ShmSlice => (&SHM_SLICE, Some(&SHM_SLICE_ONE_PASS)),
        // Threads access all memory in the way that processes access registered memory.
        Reach::ShmRegistered | Reach::Threads => (&SHM_REGISTERED, Some(&SHM_REGISTERED_ONE_PASS)),
        Reach::Mpi => (&MPI, None),
        Reach::Network => (&NETWORK, None),
    };
    let link = |ranges: &[Range]| Link::new(ranges.to_vec()).expect("the default constants are a valid link");
    let (messages, one_pass) = (link(messages), one_pass.map(link));
    Section { messages, one_pass, hand_over_us: None, measured: MEASURED.to_owned() }
}

/// Written by `unisono tune`, over Open MPI 4.1.4, on an AMD EPYC (Zen 5). Its two virtual cores are sometimes hyperthreads of one core and
/// sometimes separate cores. A cache line takes 0.2 or 0.45 us from one to the other, and the times of messages that fit the caches vary by
/// a factor of two. The constants are the geometric means of both states, so neither is off by more than a factor of 1.5 at most sizes. The
/// constants of MPI messages are from an Intel Cascade Lake.
const MEASURED: &str = "2 ranks on a machine of 2 cores, between its fastest and its slowest moments";

const fn range(up_to_bytes: usize, alpha_us: f64, move_gb_per_s: f64, reduce_gb_per_s: f64) -> Range {
    Range { up_to_bytes, alpha_us, move_gb_per_s, reduce_gb_per_s }
}

const fn pass(up_to_bytes: usize, alpha_us: f64, gb_per_s: f64) -> Range {
    range(up_to_bytes, alpha_us, gb_per_s, gb_per_s)
}

const ANY: usize = usize::MAX;

const SHM_SLICE: [Range; 8] = [
    range(512, 0.345, 11.4, 9.898),
    range(4 << 10, 0.349, 12.1, 12.4),
    range(32 << 10, 0.48, 20.9, 21.2),
    range(256 << 10, 0.366, 21.1, 17.2),
    range(1 << 20, 1.935, 28.1, 17.3),
    range(4 << 20, 1.526, 27.6, 16.7),
    range(8 << 20, 0.0, 25.8, 15.8),
    range(ANY, 0.0, 18.6, 11.8),
];

const SHM_SLICE_ONE_PASS: [Range; 8] = [
    pass(512, 0.57, 12.9),
    pass(4 << 10, 0.567, 12.9),
    pass(32 << 10, 0.592, 12.9),
    pass(256 << 10, 0.808, 14.3),
    pass(1 << 20, 0.0, 12.4),
    pass(4 << 20, 0.0, 11.0),
    pass(8 << 20, 0.0, 9.633),
    pass(ANY, 0.0, 7.747),
];

const SHM_REGISTERED: [Range; 8] = [
    range(512, 0.337, 12.6, 8.929),
    range(4 << 10, 0.342, 13.1, 12.9),
    range(32 << 10, 0.541, 33.9, 34.0),
    range(256 << 10, 0.78, 47.0, 45.2),
    range(1 << 20, 0.0, 39.1, 38.2),
    range(4 << 20, 0.0, 36.7, 37.1),
    range(8 << 20, 0.0, 34.8, 33.9),
    range(ANY, 0.0, 25.6, 23.0),
];

const SHM_REGISTERED_ONE_PASS: [Range; 8] = [
    pass(512, 0.487, 29.7),
    pass(4 << 10, 0.519, 33.7),
    pass(32 << 10, 0.365, 16.5),
    pass(256 << 10, 1.159, 26.7),
    pass(1 << 20, 5.493, 48.5),
    pass(4 << 20, 0.0, 36.5),
    pass(8 << 20, 0.0, 32.9),
    pass(ANY, 0.0, 22.9),
];

const MPI: [Range; 6] = [
    range(512, 0.72, 0.669, 0.618),
    range(4 << 10, 0.982, 1.562, 1.484),
    range(32 << 10, 4.149, 9.552, 7.588),
    range(256 << 10, 3.834, 9.629, 6.988),
    range(2 << 20, 0.0, 8.056, 4.992),
    range(ANY, 0.0, 5.913, 3.678),
];

/// Typical of 10 Gbit/s Ethernet, not measured.
const NETWORK: [Range; 1] = [range(ANY, 15.0, 1.25, 1.25)];
