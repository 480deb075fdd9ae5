//! Measures the constants of [`crate::tuning`] by timing collectives that have a known number of messages, or of parts in a single pass.
//!
//! With more ranks than cores, context switches take most of the time of a short collective. Their constant is fitted so that the clock
//! predicts the measured times. Such a world of one node measures nothing else, since messages are measured with a core for each rank.

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
mod steps;
mod world;

pub use array::Array;
#[cfg(feature = "tuning")]
use effort::QUICK;
use effort::{Effort, THOROUGH};
pub use fit::Off;
use steps::{ORDERS, TimedCall, all_reduce, steps};
#[cfg(feature = "tuning")]
pub use world::file;
pub(crate) use world::{agree, of_threads};

/// A measured section.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// The kind of communication.
    pub reach: Reach,
    /// The constants.
    pub section: Section,
    /// The error of the constants of messages; `None` if only context switches were measured.
    pub messages_off: Option<Off>,
    /// The error of the constants of a single pass.
    pub one_pass_off: Option<Off>,
    /// The shortest and the longest median time of an 8-byte exchange during the measurement.
    pub exchange_us: [f64; 2],
}

/// The largest ratio of two times of one operation on a machine whose state has not changed.
const MAX_STABLE_RATIO: f64 = 1.5;

impl Measured {
    /// Returns whether the state of the machine was stable. On a virtual machine the latency of a cache line changes: two virtual cores may be
    /// hyperthreads of one core now, and distant cores a moment later.
    pub fn is_steady(&self) -> bool {
        let [least_us, most_us] = self.exchange_us;
        most_us <= MAX_STABLE_RATIO * least_us
    }

    /// Compares the times of messages with those of an older section. Returns the message size with the largest difference, and the ratio of
    /// the older time to the measured one; `None` if all differences are within the noise.
    pub fn disagreement(&self, older: &Section) -> Option<(usize, f64)> {
        let times = |size_bytes| {
            let time_us = |section: &Section| section.messages.time_us(size_bytes, true);
            (size_bytes, time_us(older) / time_us(&self.section))
        };
        let distance = |&(_, times): &(usize, f64)| times.ln().abs();
        let furthest = [MIN_BYTES, 32 << 10, 1 << 20].map(times).into_iter();
        furthest
            .max_by(|one, other| distance(one).total_cmp(&distance(other)))
            .filter(|one| distance(one) > MAX_STABLE_RATIO.ln())
    }
}

/// Before a call on an array of at least `LARGE_BYTES`, a rank writes to this many times its size: the array, and other memory. (The largest array is
/// written alone, since it is meant to be larger than the caches.)
const USED_BETWEEN: usize = 2;
const LARGE_BYTES: usize = 256 << 10;
/// The smallest message that is measured.
const MIN_BYTES: usize = 8;

/// Measures the constants that this world can determine, in a few seconds, or in minutes over a slow network. Ranks of one node measure the
/// messages inside it, and ranks of several nodes those between them. Oversubscribed ranks measure the time of a context switch. Other
/// constants are taken from `known`. All ranks call it; ranks with identical `known` get identical results.
///
/// # Errors
/// [`Error::Unsupported`] if there is only one rank; otherwise as [`Communicator::all_reduce`].
pub fn measure(comm: &mut Communicator, known: &Tuning) -> Result<Vec<Measured>> {
    measure_with(&THOROUGH, comm, known)
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
    /// [`Error::Memory`], on all ranks, if one of them cannot allocate the array.
    fn new(comm: &'a mut Communicator, effort: &'a Effort, reach: Reach, memory: Memory) -> Result<Self> {
        let largest_bytes = match (comm.is_oversubscribed(), reach) {
            (true, reach) if reach != Reach::Network => MIN_BYTES * comm.ranks(),
            _ => effort.array_bytes(reach, comm.ranks()),
        };
        let array = Array::<f32>::new(memory, comm, largest_bytes / DType::F32.size_bytes());
        let mut has_all = [u8::from(array.is_ok())];
        comm.call().algorithm(Choice::Auto).all_reduce(&mut has_all, ReduceOp::Min)?;
        let mut array = array?;
        if has_all != [1] {
            let cause = std::io::Error::other("another rank could not allocate the memory");
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
                measured.section.hand_over_us = self.context_switches(&known)?.section.hand_over_us;
                Ok(measured)
            }
            (true, _) => self.context_switches(known),
        }
    }

    fn section(&mut self, known: &Tuning) -> Result<Measured> {
        let (reach, ranks) = (self.reach, self.comm.ranks());
        let (largest_bytes, factor) = (self.effort.largest_bytes(reach, ranks), self.effort.factor);
        let sizes = std::iter::successors(Some(MIN_BYTES), |size| Some(size * factor));
        let sizes = sizes.take_while(|size| size * factor <= largest_bytes).chain([largest_bytes]);
        let mut measured: Vec<_> = sizes.map(|size_bytes| steps(reach, ranks, size_bytes)).collect();
        let mut exchanges_us = Vec::new();
        for _ in 0..self.effort.rounds {
            exchanges_us.push(self.exchange_us()?);
            for same_size in &mut measured {
                let calls: Vec<_> = same_size.iter().map(|steps| (steps.timed, steps.array_bytes)).collect();
                for (steps, round_us) in same_size.iter_mut().zip(self.medians_us(&calls)?) {
                    steps.sample.time_us = steps.sample.time_us.min(round_us);
                }
            }
        }
        exchanges_us.push(self.exchange_us()?);
        let samples = |is_pass: bool| {
            let of_kind = measured.iter().flatten().filter(|steps| steps.is_pass == is_pass);
            of_kind.map(|steps| steps.sample).collect::<Vec<_>>()
        };
        let (messages, one_pass) = (samples(false), samples(true));
        let failed =
            |error| Error::Unsupported(format!("the measured times do not make a valid link: {error}"));
        let link = fit::link(&messages).map_err(failed)?;
        let pass = reach.shares_memory().then(|| fit::link(&one_pass)).transpose().map_err(failed)?;
        let exchange_us = extremes(&exchanges_us);
        Ok(Measured {
            reach,
            messages_off: Some(fit::errors(&link, &messages)),
            one_pass_off: pass.as_ref().map(|pass| fit::errors(pass, &one_pass)),
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
        let doubling: TimedCall = (Algorithm::RecursiveDoubling, all_reduce);
        Ok(self.medians_us(&[(doubling, MIN_BYTES)])?[0])
    }

    /// Measures collectives on arrays of these sizes, alternating; returns the medians of the slowest ranks.
    fn medians_us(&mut self, calls: &[(TimedCall, usize)]) -> Result<Vec<f64>> {
        let Effort { bytes_per_size, ref iterations, warm_up, .. } = *self.effort;
        let largest_bytes = calls.iter().map(|(_, array_bytes)| *array_bytes).max().unwrap_or(MIN_BYTES);
        let iterations = (bytes_per_size / largest_bytes).clamp(*iterations.start(), *iterations.end());
        let mut times_us = vec![Vec::new(); calls.len()];
        for iteration in 0..warm_up + iterations {
            for (((algorithm, call), array_bytes), times_us) in calls.iter().zip(&mut times_us) {
                let count = array_bytes / DType::F32.size_bytes();
                // As after a computation, the array is in this rank's caches, if it fits. A computation on large arrays also uses other memory, which
                // displaces older contents of the caches.
                let used = if *array_bytes < LARGE_BYTES { count } else { USED_BETWEEN * count };
                self.array.fill(|elements| {
                    let used = used.min(elements.len());
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
    fn context_switches(&mut self, known: &Tuning) -> Result<Measured> {
        let array_bytes = MIN_BYTES * self.comm.ranks();
        let (mut exchanges_us, mut rounds_us) = (Vec::new(), Vec::new());
        for _ in 0..self.effort.rounds {
            exchanges_us.push(self.exchange_us()?);
            rounds_us.push(self.medians_us(&ORDERS.map(|timed| (timed, array_bytes)))?);
        }
        exchanges_us.push(self.exchange_us()?);
        let (cores, element_bytes) = (self.comm.cores(), DType::F32.size_bytes());
        let machine = known.machine(self.comm.transport(), self.memory, cores);
        let error_of = |hand_over_us: f64| {
            let machine = Machine { hand_over_us, ..machine.clone() };
            let predicted_us = ORDERS.map(|(algorithm, call)| {
                let (operation, topology) = (call(0).operation, self.comm.topology());
                clock::predict(algorithm, operation, topology, &machine, array_bytes, element_bytes)
                    .map_or(f64::INFINITY, |predicted| predicted.time_us)
            });
            let error_of_round = |round_us: &Vec<f64>| {
                predicted_us
                    .iter()
                    .zip(round_us)
                    .map(|(predicted, measured)| (predicted / measured).ln().powi(2))
                    .sum::<f64>()
            };
            rounds_us.iter().map(error_of_round).sum::<f64>()
        };
        let most_us = rounds_us.iter().flatten().copied().fold(0.0, f64::max);
        let hand_over_us = (fit::minimizer(error_of, most_us) * 1e3).round() / 1e3;
        Ok(Measured {
            reach: self.reach,
            section: Section { hand_over_us: Some(hand_over_us), ..known.section(self.reach).clone() },
            messages_off: None,
            one_pass_off: None,
            exchange_us: extremes(&exchanges_us),
        })
    }
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
    fn unstable_measurement_is_detected() {
        assert!(measured(0.3, [0.3, 0.4]).is_steady());
        assert!(!measured(0.3, [0.3, 0.5]).is_steady());
        let now = measured(0.2, [0.2, 0.2]);
        assert_eq!(now.disagreement(&measured(0.25, [0.2, 0.2]).section), None);
        let (size_bytes, times) = now.disagreement(&measured(0.5, [0.2, 0.2]).section).unwrap();
        assert_eq!(size_bytes, MIN_BYTES);
        assert!((2.4..2.6).contains(&times), "{times}");
        let (_, times) = measured(0.5, [0.2, 0.2]).disagreement(&now.section).unwrap();
        assert!((0.39..0.41).contains(&times), "{times}");
    }

    #[test]
    fn oversubscribed_ranks_measure_only_context_switches() {
        let cores = std::thread::available_parallelism().unwrap().get();
        let known = Tuning::default();
        let known = &known;
        let all: Vec<_> = std::thread::scope(|scope| {
            let ranks = crate::Unisono::builder().threads(cores + 1).unwrap().into_iter();
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
