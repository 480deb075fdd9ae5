//! Measuring the constants: collectives whose steps are all alike.
//!
//! A ring's reduce-scatter and all-gather over p ranks are p − 1 steps, in each of which every rank sends n/p bytes and reduces or puts
//! in place as many; they are always carried out by messages. A round-robin all-reduce is one pass where memory is
//! shared. So times over p − 1 are those of a message, or of another rank in one pass.

use super::fit::{self, Off, Sample};
use super::{Reach, Section};
use crate::bench::{self, Array, Memory};
use crate::{Algorithm, Call, Choice, Communicator, DType, Error, Operation, ReduceOp, Result};

/// A section, as measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// What it is about.
    pub reach: Reach,
    /// The constants.
    pub section: Section,
    /// By how much the constants are off.
    pub messages_off: Off,
    /// The same of one pass.
    pub one_pass_off: Option<Off>,
}

/// Messages of up to this size are measured, each size twice the one before.
const LEAST_BYTES: usize = 8;
const MOST_BYTES: usize = 8 << 20;
/// No array is larger.
const MOST_ARRAY_BYTES: usize = 64 << 20;

/// How often all sizes are measured, one after the other; of the medians the least counts. What else the machine
/// does comes and goes, and so disturbs neighbouring sizes, but hardly all rounds.
const ROUNDS: usize = 3;
const WARM_UP: usize = 3;
/// How many bytes are worth sending for a size, and how often at least and at most.
const WORTH_BYTES: usize = 1 << 26;
const ITERATIONS: std::ops::RangeInclusive<usize> = 15..=200;

/// Measures what this world can show, in a few seconds, or minutes over a slow network: ranks of a node how these reach each other,
/// ranks of several nodes the network between them. Called by all ranks; all get the same.
///
/// # Errors
/// [`Error::Unsupported`] if there is only one rank; otherwise as [`Communicator::all_reduce`].
pub fn measure(comm: &mut Communicator) -> Result<Vec<Measured>> {
    if comm.ranks() == 1 {
        return Err(Error::Unsupported("one rank reaches no other: measure with at least two ranks".into()));
    }
    let kinds = match (comm.topology().nodes(), Reach::inside(comm.transport(), Memory::Slice)) {
        (1, Reach::ShmSlice) => {
            vec![(Reach::ShmSlice, Memory::Slice), (Reach::ShmRegistered, Memory::Registered)]
        }
        (1, reach) => vec![(reach, Memory::Slice)],
        _ => vec![(Reach::Network, Memory::Slice)],
    };
    kinds.into_iter().map(|(reach, memory)| section(comm, reach, memory)).collect()
}

fn section(comm: &mut Communicator, reach: Reach, memory: Memory) -> Result<Measured> {
    let sizes = std::iter::successors(Some(LEAST_BYTES), |size| Some(size * 2));
    let largest = MOST_BYTES.min(MOST_ARRAY_BYTES / comm.ranks()).max(4 * LEAST_BYTES);
    let mut times_us: Vec<_> =
        sizes.take_while(|&size| size <= largest).map(|size| (size, [f64::INFINITY; 3])).collect();
    // Where ranks take turns on cores, the clock lets them; a network is not the work of cores to it.
    let turns = if reach == Reach::Network { 1.0 } else { comm.turns() };
    for _ in 0..ROUNDS {
        for (size_bytes, least_us) in &mut times_us {
            let round_us = time_us(comm, memory, *size_bytes)?.map(|time_us| time_us / turns);
            least_us.iter_mut().zip(round_us).for_each(|(least, round)| *least = least.min(round));
        }
    }
    let (mut messages, mut one_pass) = (Vec::new(), Vec::new());
    for (size_bytes, [moved_us, reduced_us, pass_us]) in times_us {
        let sample = |time_us, reduces| Sample { size_bytes, time_us, reduces };
        messages.extend([sample(moved_us, false), sample(reduced_us, true)]);
        one_pass.push(sample(pass_us, true));
    }
    let failed = |error| Error::Unsupported(format!("what was measured makes no link: {error}"));
    let link = fit::link(&messages).map_err(failed)?;
    let pass = reach.shares_memory().then(|| fit::link(&one_pass)).transpose().map_err(failed)?;
    Ok(Measured {
        reach,
        messages_off: fit::off(&link, &messages),
        one_pass_off: pass.as_ref().map(|pass| fit::off(pass, &one_pass)),
        section: Section { messages: link, one_pass: pass, measured: described(comm) },
    })
}

fn described(comm: &Communicator) -> String {
    let (ranks, nodes, transport) = (comm.ranks(), comm.topology().nodes(), comm.transport());
    let turns = if comm.is_oversubscribed() { ", which took turns" } else { "" };
    format!("{ranks} ranks{turns}, on {nodes} node(s), over {transport}")
}

/// The time of a message of so many bytes that is put in place, of one that is reduced, and of another rank in one
/// pass over parts of so many bytes.
fn time_us(comm: &mut Communicator, memory: Memory, size_bytes: usize) -> Result<[f64; 3]> {
    let (ranks, dtype) = (comm.ranks(), DType::F32);
    let count = size_bytes * ranks / dtype.size_bytes();
    let reduced = Call::all_reduce(dtype, ReduceOp::Sum, count);
    let scattered = Call { operation: Operation::ReduceScatter, ..reduced };
    let gathered = Call { operation: Operation::AllGather, op: None, ..reduced };
    let calls = [(Algorithm::Ring, gathered), (Algorithm::Ring, scattered), (Algorithm::RoundRobin, reduced)];
    let iterations = (WORTH_BYTES / (size_bytes * ranks)).clamp(*ITERATIONS.start(), *ITERATIONS.end());
    let mut array = Array::<f32>::new(memory, comm, count)?;
    let mut times_us = [const { Vec::new() }; 3];
    for iteration in 0..WARM_UP + iterations {
        for ((algorithm, call), times_us) in calls.iter().zip(&mut times_us) {
            // As after a computation: it is in this rank's caches, if in any.
            array.fill(|elements| elements.fill(1.0))?;
            let (_, time_us) = array.timed(comm, &Choice::Algorithm(*algorithm), call)?;
            if iteration >= WARM_UP {
                times_us.push(time_us);
            }
        }
    }
    let mut medians_us = [0.0; 3];
    for (median_us, times_us) in medians_us.iter_mut().zip(times_us) {
        *median_us = bench::slowest(comm, times_us)?.p50 / (ranks - 1) as f64;
    }
    Ok(medians_us)
}
