//! Measuring the constants of [`crate::tuning`]: they are fitted to the times of collectives that have a known number of messages, or of
//! parts in one pass.
//!
//! Where ranks take turns on cores, most of a short collective is hand-overs. Their constant is fitted: with it, the
//! clock predicts what was measured. In such a world of one node, nothing else is measured: messages are where each rank has a core.

use unisono_collectives::clock;
use unisono_collectives::model::Machine;

use crate::call::Memory;
use crate::tuning::{Reach, Section, Tuning};
use crate::{Algorithm, Choice, Communicator, DType, Error, ReduceOp, Result};

mod array;
mod effort;
#[cfg(feature = "tuning")]
mod first_use;
mod fit;
mod rank_0;
mod steps;
mod world;

pub use array::Array;
#[cfg(feature = "tuning")]
use effort::QUICK;
use effort::{Effort, THOROUGH};
pub use fit::Off;
use steps::{ORDERS, Way, all_reduce, steps};
#[cfg(feature = "tuning")]
pub use world::file;
pub(crate) use world::{agree, of_threads};

/// A section, as measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// The kind of communication.
    pub reach: Reach,
    /// The constants.
    pub section: Section,
    /// The error of the constants of messages; `None` if only hand-overs were measured.
    pub messages_off: Option<Off>,
    /// The error of the constants of a single pass.
    pub one_pass_off: Option<Off>,
    /// The shortest and the longest median time of an 8-byte exchange during the measurement.
    pub exchange_us: [f64; 2],
}

/// The largest ratio of two times of one operation on a machine whose state has not changed.
const SAME: f64 = 1.5;

impl Measured {
    /// Returns whether the state of the machine was stable. On a virtual machine the latency of a cache line changes: two virtual cores may be
    /// hyperthreads of one core now, and distant cores a moment later.
    pub fn is_steady(&self) -> bool {
        let [least_us, most_us] = self.exchange_us;
        most_us <= SAME * least_us
    }

    /// By how much its messages differ from what was measured before, where it does: the size of a message, and what that takes by the older
    /// constants over what it takes by these.
    pub fn disagreement(&self, older: &Section) -> Option<(usize, f64)> {
        let times = |size_bytes| {
            let time_us = |section: &Section| section.messages.time_us(size_bytes, true);
            (size_bytes, time_us(older) / time_us(&self.section))
        };
        let far = |&(_, times): &(usize, f64)| times.ln().abs();
        let furthest = [LEAST_BYTES, 32 << 10, 1 << 20].map(times).into_iter();
        furthest.max_by(|one, other| far(one).total_cmp(&far(other))).filter(|one| far(one) > SAME.ln())
    }
}

/// Before a call on an array of at least `LARGE_BYTES`, a rank writes to this many times its size: the array, and other memory.
const USED_BETWEEN: usize = 2;
const LARGE_BYTES: usize = 256 << 10;
/// The smallest message that is measured.
const LEAST_BYTES: usize = 8;
/// The largest one between nodes, where no cache plays a part, and a message of that size may take seconds.
const MOST_FAR_BYTES: usize = 8 << 20;

/// Measures what this world can show, in a few seconds, or minutes over a slow network: ranks of a node how these reach each other,
/// ranks of several nodes the network between them, and ranks that take turns on cores the time of a context switch. What cannot be
/// measured stays as in `known`. Called by all ranks; all that know the same get the same.
///
/// # Errors
/// [`Error::Unsupported`] if there is only one rank; otherwise as [`Communicator::all_reduce`].
pub fn measure(comm: &mut Communicator, known: &Tuning) -> Result<Vec<Measured>> {
    measure_with(&THOROUGH, comm, known)
}

/// Measures as [`measure`], in milliseconds and less accurately.
#[cfg(feature = "tuning")]
fn measure_quickly(comm: &mut Communicator, known: &Tuning) -> Result<Vec<Measured>> {
    measure_with(&QUICK, comm, known)
}

fn measure_with(effort: &Effort, comm: &mut Communicator, known: &Tuning) -> Result<Vec<Measured>> {
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
    kinds.into_iter().map(|(reach, memory)| Bench::new(comm, effort, reach, memory)?.measure(known)).collect()
}

/// A world that measures how its ranks reach each other.
struct Bench<'a> {
    comm: &'a mut Communicator,
    effort: &'a Effort,
    reach: Reach,
    memory: Memory,
    /// The array of all calls, with the largest size that is measured: the page faults of new memory would dominate the times.
    array: Array<f32>,
}

impl<'a> Bench<'a> {
    /// # Errors
    /// [`Error::Memory`], on all ranks, if one of them gets no array.
    fn new(comm: &'a mut Communicator, effort: &'a Effort, reach: Reach, memory: Memory) -> Result<Self> {
        let message_bytes = match (comm.is_oversubscribed(), reach) {
            (true, reach) if reach != Reach::Network => LEAST_BYTES,
            _ => largest_bytes(effort, reach, comm.ranks()),
        };
        let largest_bytes = message_bytes * comm.ranks();
        let array = Array::<f32>::new(memory, comm, USED_BETWEEN * largest_bytes / DType::F32.size_bytes());
        let mut has_all = [u8::from(array.is_ok())];
        comm.call().algorithm(Choice::Auto).all_reduce(&mut has_all, ReduceOp::Min)?;
        let mut array = array?;
        if has_all != [1] {
            let cause = std::io::Error::other("another rank has no such memory");
            return Err(Error::Memory { size_bytes: largest_bytes, cause });
        }
        array.fill(|elements| elements.fill(1.0))?;
        Ok(Self { comm, effort, reach, memory, array })
    }

    fn measure(&mut self, known: &Tuning) -> Result<Measured> {
        match (self.comm.is_oversubscribed(), self.reach) {
            (false, _) => self.section(known),
            (true, Reach::Network) => {
                let mut measured = self.section(known)?;
                let known = known.clone().with([(self.reach, measured.section.clone())]);
                measured.section.hand_over_us = self.hand_overs(&known)?.section.hand_over_us;
                Ok(measured)
            }
            (true, _) => self.hand_overs(known),
        }
    }

    fn section(&mut self, known: &Tuning) -> Result<Measured> {
        let (reach, ranks) = (self.reach, self.comm.ranks());
        let sizes = std::iter::successors(Some(LEAST_BYTES), |size| Some(size * self.effort.factor));
        let largest_bytes = largest_bytes(self.effort, reach, ranks);
        let copies = known.machine(self.comm.transport(), self.memory, 1).copies;
        let sizes = sizes.take_while(|&size| size <= largest_bytes);
        let mut measured: Vec<_> =
            sizes.flat_map(|size_bytes| steps(reach, ranks, copies, size_bytes)).collect();
        let mut exchanges_us = Vec::new();
        for _ in 0..self.effort.rounds {
            exchanges_us.push(self.exchange_us()?);
            for alike in measured.chunk_by_mut(|one, other| one.sample.size_bytes == other.sample.size_bytes)
            {
                let ways: Vec<_> = alike.iter().map(|steps| (steps.way, steps.array_bytes)).collect();
                for (steps, round_us) in alike.iter_mut().zip(self.medians_us(&ways)?) {
                    steps.sample.time_us = steps.sample.time_us.min(round_us);
                }
            }
        }
        exchanges_us.push(self.exchange_us()?);
        let samples = |is_pass: bool| {
            let of_kind = measured.iter().filter(|steps| steps.is_pass == is_pass);
            of_kind.map(|steps| steps.sample).collect::<Vec<_>>()
        };
        let (messages, one_pass) = (samples(false), samples(true));
        let failed = |error| Error::Unsupported(format!("what was measured makes no link: {error}"));
        let link = fit::link(&messages).map_err(failed)?;
        let pass = reach.shares_memory().then(|| fit::link(&one_pass)).transpose().map_err(failed)?;
        let exchange_us = extremes(&exchanges_us);
        Ok(Measured {
            reach,
            messages_off: Some(fit::off(&link, &messages)),
            one_pass_off: pass.as_ref().map(|pass| fit::off(pass, &one_pass)),
            section: Section {
                messages: link,
                one_pass: pass,
                measured: described(self.comm, exchange_us),
                ..known.section(reach).clone()
            },
            exchange_us,
        })
    }

    /// Returns the time of an 8-byte exchange: little more than the latency of a cache line.
    fn exchange_us(&mut self) -> Result<f64> {
        let doubling: Way = (Algorithm::RecursiveDoubling, all_reduce);
        Ok(self.medians_us(&[(doubling, LEAST_BYTES)])?[0])
    }

    /// Measures collectives on arrays of these sizes, alternating; returns the medians of the slowest ranks.
    fn medians_us(&mut self, ways: &[(Way, usize)]) -> Result<Vec<f64>> {
        let Effort { worth_bytes, ref iterations, warm_up, .. } = *self.effort;
        let largest_bytes = ways.iter().map(|(_, array_bytes)| *array_bytes).max().unwrap_or(LEAST_BYTES);
        let iterations = (worth_bytes / largest_bytes).clamp(*iterations.start(), *iterations.end());
        let mut times_us = vec![Vec::new(); ways.len()];
        for iteration in 0..warm_up + iterations {
            for (((algorithm, call), array_bytes), times_us) in ways.iter().zip(&mut times_us) {
                let count = array_bytes / DType::F32.size_bytes();
                // As after a computation: it is in this rank's caches, if in any. A computation on large arrays uses other memory too, which
                // displaces older contents of the caches.
                let used = if *array_bytes < LARGE_BYTES { count } else { USED_BETWEEN * count };
                self.array.fill(|elements| {
                    elements[..used].rchunks_mut(count).for_each(|part| part.fill(1.0));
                })?;
                let (_, time_us) = self.array.timed(self.comm, &Choice::from(*algorithm), &call(count))?;
                if iteration >= warm_up {
                    times_us.push(time_us);
                }
            }
        }
        times_us.into_iter().map(|times_us| median_of_slowest(self.comm, times_us)).collect()
    }

    /// Fits the time of a context switch, so that the clock predicts the measured times of short collectives.
    fn hand_overs(&mut self, known: &Tuning) -> Result<Measured> {
        let array_bytes = LEAST_BYTES * self.comm.ranks();
        let (mut exchanges_us, mut rounds_us) = (Vec::new(), Vec::new());
        for _ in 0..self.effort.rounds {
            exchanges_us.push(self.exchange_us()?);
            rounds_us.push(self.medians_us(&ORDERS.map(|way| (way, array_bytes)))?);
        }
        exchanges_us.push(self.exchange_us()?);
        let cores = self.comm.transport_of_engine().node_cores();
        let machine = known.machine(self.comm.transport(), self.memory, cores);
        let off = |hand_over_us: f64| {
            let machine = Machine { hand_over_us, ..machine.clone() };
            let said_us = ORDERS.map(|way| said_us(self.comm, &machine, array_bytes, way));
            let off = |round_us: &Vec<f64>| {
                said_us
                    .iter()
                    .zip(round_us)
                    .map(|(said, measured)| (said / measured).ln().powi(2))
                    .sum::<f64>()
            };
            rounds_us.iter().map(off).sum::<f64>()
        };
        let most_us = rounds_us.iter().flatten().copied().fold(0.0, f64::max);
        let hand_over_us = (fit::least(off, most_us) * 1e3).round() / 1e3;
        Ok(Measured {
            reach: self.reach,
            section: Section { hand_over_us: Some(hand_over_us), ..known.section(self.reach).clone() },
            messages_off: None,
            one_pass_off: None,
            exchange_us: extremes(&exchanges_us),
        })
    }
}

/// The largest message between this many ranks that is measured.
fn largest_bytes(effort: &Effort, reach: Reach, ranks: usize) -> usize {
    let most_bytes = if reach == Reach::Network { MOST_FAR_BYTES } else { effort.most_bytes };
    most_bytes.min(effort.most_array_bytes / ranks).max(4 * LEAST_BYTES)
}

fn median_of_slowest(comm: &mut Communicator, mut times_us: Vec<f64>) -> Result<f64> {
    comm.call().algorithm(Choice::Auto).all_reduce(&mut times_us, ReduceOp::Max)?;
    times_us.sort_by(f64::total_cmp);
    Ok(times_us[times_us.len() / 2])
}

fn extremes(times_us: &[f64]) -> [f64; 2] {
    [times_us.iter().copied().fold(f64::INFINITY, f64::min), times_us.iter().copied().fold(0.0, f64::max)]
}

fn described(comm: &Communicator, [least_us, most_us]: [f64; 2]) -> String {
    let (ranks, nodes, transport) = (comm.ranks(), comm.topology().nodes(), comm.transport());
    format!(
        "{ranks} ranks, on {nodes} node(s), over {transport}; a cache line and back took {least_us:.2} to {most_us:.2} us"
    )
}

/// Returns the predicted time of a collective.
fn said_us(comm: &Communicator, machine: &Machine, array_bytes: usize, (algorithm, call): Way) -> f64 {
    let operation = call(array_bytes / DType::F32.size_bytes()).operation;
    let element_bytes = DType::F32.size_bytes();
    clock::predict(algorithm, operation, comm.topology(), machine, array_bytes, element_bytes)
        .map_or(f64::INFINITY, |predicted| predicted.time_us)
}

#[cfg(test)]
mod tests {
    use unisono_collectives::model::Link;

    use super::*;

    fn measured(alpha_us: f64, exchange_us: [f64; 2]) -> Measured {
        let messages = Link::uniform(alpha_us, 10.0).unwrap();
        let section = Section { messages, ..Tuning::default().section(Reach::Threads).clone() };
        Measured { reach: Reach::Threads, section, messages_off: None, one_pass_off: None, exchange_us }
    }

    #[test]
    fn an_unusual_moment_is_seen() {
        assert!(measured(0.3, [0.3, 0.4]).is_steady());
        assert!(!measured(0.3, [0.3, 0.5]).is_steady());
        let now = measured(0.2, [0.2, 0.2]);
        assert_eq!(now.disagreement(&measured(0.25, [0.2, 0.2]).section), None);
        let (size_bytes, times) = now.disagreement(&measured(0.5, [0.2, 0.2]).section).unwrap();
        assert_eq!(size_bytes, LEAST_BYTES);
        assert!((2.4..2.6).contains(&times), "{times}");
        let (_, times) = measured(0.5, [0.2, 0.2]).disagreement(&now.section).unwrap();
        assert!((0.39..0.41).contains(&times), "{times}");
    }

    #[test]
    fn ranks_that_take_turns_measure_hand_overs_and_leave_messages_alone() {
        let cores = std::thread::available_parallelism().unwrap().get();
        let known = Tuning::default();
        let known = &known;
        let all: Vec<_> = std::thread::scope(|scope| {
            let ranks = Communicator::threads(cores + 1).unwrap().into_iter();
            let ranks: Vec<_> =
                ranks.map(|mut comm| scope.spawn(move || measure(&mut comm, known).unwrap())).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        for measured in all.into_iter().flatten() {
            assert!(measured.section.hand_over_us.is_some_and(|us| us > 0.01), "{measured:?}");
            assert_eq!(measured.section.messages, known.section(Reach::Threads).messages);
        }
    }
}
