//! Measuring collectives, honestly: against a barrier, slowest rank first, every result checked, contenders
//! taking turns.

use crate::Communicator;
use crate::call::{Call, Memory};
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::kernels::{ReduceOp, for_dtype};
use crate::select::Choice;
use half::{bf16, f16};

mod array;
mod barrier;
pub mod constants;
mod operation;
#[cfg(feature = "nccl")]
pub(crate) mod parts;
mod pattern;
mod room;

pub(crate) use array::Array;
pub use operation::Operation;
use pattern::Pattern;
pub use room::{Room, room};

/// What is measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Who takes part; they take turns, iteration by iteration.
    pub contenders: Vec<Choice>,
    /// What they carry out, one after the other.
    pub operations: Vec<Operation>,
    /// The sizes of the array.
    pub sizes_bytes: Vec<usize>,
    /// The type of its elements.
    pub dtype: DType,
    /// The reduction, where the operation reduces.
    pub op: ReduceOp,
    /// The kind of memory that the array is in.
    pub memory: Memory,
    /// How often each contender is measured at each size; by default as often as is worth while for the size.
    pub iterations: Option<usize>,
}

/// Times of a set of iterations, each that of the slowest rank.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[expect(missing_docs, reason = "the names of order statistics say all")]
pub struct Times {
    pub min: f64,
    pub p50: f64,
    pub p95: f64,
    pub max: f64,
}

impl Times {
    /// The order statistics of a set that is not empty.
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let last = times.len() - 1;
        let at = |share: f64| times[(share * last as f64).round() as usize];
        Self { min: at(0.0), p50: at(0.5), p95: at(0.95), max: at(1.0) }
    }
}

/// One contender at one size.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Row {
    /// What was asked for.
    pub algorithm: String,
    /// What ran.
    pub ran: &'static str,
    /// What was carried out.
    pub operation: &'static str,
    /// The size of the array.
    pub bytes: usize,
    /// The number of its elements.
    pub count: usize,
    /// Their type.
    pub dtype: &'static str,
    /// The reduction; `none` where values are only moved.
    pub op: &'static str,
    /// The number of ranks.
    pub ranks: usize,
    /// The number of nodes.
    pub nodes: usize,
    /// How messages travel.
    pub transport: &'static str,
    /// What kind of memory the array is in.
    pub memory: &'static str,
    /// The time of one call: for each iteration that of the slowest rank.
    pub time_us: Times,
    /// By how much the fastest rank is ahead of the slowest: the median over iterations, in percent of the
    /// slowest.
    pub skew_percent: f64,
    /// Bytes of the array over the median time, in 1e9 bytes a second.
    pub algbw_gb_per_s: f64,
    /// The same times 2(p−1)/p for an all-reduce, and what nccl-tests defines for others: what a link must carry at least.
    /// Comparable between worlds.
    pub busbw_gb_per_s: f64,
    /// How many elements were wrong, on the rank and in the iteration where most were; of a barrier, how many iterations a rank
    /// left before all had come.
    pub wrong: u64,
    /// What the cost model says of what ran; null for a vendor's own.
    pub predicted_us: Option<f64>,
    /// Whether ranks outnumber cores, so that times say little about the algorithm.
    pub oversubscribed: bool,
}

/// Iterations that are run before any is measured.
const WARM_UP: usize = 3;
/// How many bytes are worth reducing for a row, and how often at least and at most.
const WORTH_BYTES: usize = 1 << 28;
const ITERATIONS: std::ops::RangeInclusive<usize> = 10..=1000;
/// The reduction of what does not reduce, as nccl-tests says it.
const NO_OP: &str = "none";

/// Measures every operation at every size, and hands over a row for each contender. Called by all ranks with the same
/// settings; all get the same rows.
///
/// Contenders that cannot do what is asked for are left out: they are returned, each with the reason.
///
/// # Errors
/// As [`Communicator::all_reduce`].
pub fn measure(
    comm: &mut Communicator,
    settings: &Settings,
    mut report: impl FnMut(Row),
) -> Result<Vec<(Choice, String)>> {
    let mut left_out = Vec::new();
    for &operation in &settings.operations {
        // A barrier has no array.
        let sizes = if operation == Operation::Barrier { &[0][..] } else { &settings.sizes_bytes };
        for &size_bytes in sizes {
            let call = operation.call(settings.dtype, settings.op, size_bytes, comm.ranks());
            let task = Task { operation, call, settings };
            for contender in for_dtype!(call.dtype, measure_call(comm, &task))? {
                match contender.unable {
                    Some(why) if !left_out.contains(&(contender.choice.clone(), why.clone())) => {
                        left_out.push((contender.choice, why));
                    }
                    Some(_) => {}
                    None => report(row(comm, &task, contender)?),
                }
            }
        }
    }
    Ok(left_out)
}

/// One operation at one size.
struct Task<'a> {
    operation: Operation,
    call: Call,
    settings: &'a Settings,
}

impl Task<'_> {
    /// How often it is worth while to measure it.
    fn iterations(&self) -> usize {
        let worth = WORTH_BYTES / self.call.size_bytes().max(1);
        self.settings.iterations.unwrap_or_else(|| worth.clamp(*ITERATIONS.start(), *ITERATIONS.end()))
    }

    /// Why a contender is not asked, if so: it would be carried out by something else.
    fn unable(&self, comm: &Communicator, choice: &Choice) -> Option<String> {
        let Self { operation, settings, .. } = *self;
        if settings.memory == Memory::Device && operation != Operation::AllReduce {
            return Some(format!("arrays on GPUs are only all-reduced; there is no {operation} of them"));
        }
        let (Choice::Algorithm(algorithm) | Choice::InNodes(algorithm, _)) = *choice else { return None };
        let offers = match operation.collective() {
            Some(collective) => algorithm.plan(collective, comm.topology(), comm.rank()).is_some(),
            None => *choice == Choice::Algorithm(Communicator::OF_BARRIER),
        };
        (!offers).then(|| format!("{operation} is not offered"))
    }
}

/// What one contender showed at one size, on this rank.
struct Contender {
    choice: Choice,
    ran: &'static str,
    times_us: Vec<f64>,
    wrong: u64,
    /// When this rank came to each barrier, and when it left.
    moments: Vec<barrier::Moments>,
    /// Why it cannot do what is asked for.
    unable: Option<String>,
}

fn measure_call<T: Element + From<u8>>(comm: &mut Communicator, task: &Task<'_>) -> Result<Vec<Contender>> {
    let Task { operation, ref call, settings } = *task;
    let pattern = Pattern::<T>::new(call, comm.rank(), comm.ranks());
    let mut array = Array::<T>::new(settings.memory, comm, call.count)?;
    let iterations = task.iterations();
    let new = |choice: &Choice| Contender {
        choice: choice.clone(),
        ran: "",
        times_us: Vec::with_capacity(iterations),
        wrong: 0,
        moments: Vec::new(),
        unable: task.unable(comm, choice),
    };
    let mut contenders: Vec<_> = settings.contenders.iter().map(new).collect();
    for iteration in 0..WARM_UP + iterations {
        for turn in 0..contenders.len() {
            // What ran before leaves its traces in caches and in the other ranks' schedulers, so everybody begins
            // as often.
            let position = (turn + iteration) % contenders.len();
            let contender = &mut contenders[position];
            if contender.unable.is_some() {
                continue;
            }
            array.fill(|elements| pattern.fill(elements))?;
            let timed = if operation == Operation::Barrier {
                barrier::timed(comm, &contender.choice, &mut contender.moments)
            } else {
                array.timed(comm, &contender.choice, call)
            };
            let (ran, time_us) = match timed {
                Err(Error::Unsupported(why)) => {
                    contender.unable = Some(why);
                    continue;
                }
                timed => timed?,
            };
            contender.ran = ran.method.name();
            contender.wrong = contender.wrong.max(pattern.count_wrong(array.elements()?));
            if iteration >= WARM_UP {
                contender.times_us.push(time_us);
            }
        }
    }
    Ok(contenders)
}

/// Of each iteration the time of the slowest rank.
pub(crate) fn slowest(comm: &mut Communicator, mut times_us: Vec<f64>) -> Result<Times> {
    comm.call().algorithm(Choice::Auto).all_reduce(&mut times_us, ReduceOp::Max)?;
    Ok(Times::of(times_us))
}

/// Puts together what all ranks saw of a contender.
fn row(comm: &mut Communicator, task: &Task<'_>, contender: Contender) -> Result<Row> {
    let Task { operation, call, settings: &Settings { memory, .. } } = *task;
    let Contender { choice, ran, times_us, wrong, moments, .. } = contender;
    let (mut slowest, mut fastest, mut wrong) = (times_us.clone(), times_us, [wrong]);
    comm.call().algorithm(Choice::Auto).all_reduce(&mut slowest, ReduceOp::Max)?;
    comm.call().algorithm(Choice::Auto).all_reduce(&mut fastest, ReduceOp::Min)?;
    comm.call().algorithm(Choice::Auto).all_reduce(&mut wrong, ReduceOp::Max)?;
    let skew =
        slowest.iter().zip(fastest).map(|(slowest, fastest)| 100.0 * (slowest - fastest) / slowest).collect();
    let time_us = Times::of(slowest);
    let algbw_gb_per_s = call.size_bytes() as f64 / time_us.p50 / 1e3;
    let is_on_host = Memory::HOST.contains(&memory);
    let planned = ran.parse().ok().filter(|_| is_on_host);
    let predicted = planned.and_then(|algorithm| comm.predicted_us(algorithm, &call, memory));
    Ok(Row {
        algorithm: choice.to_string(),
        ran,
        operation: operation.name(),
        bytes: call.size_bytes(),
        count: call.count,
        dtype: call.dtype.name(),
        op: if operation.reduces() { call.op.map_or(NO_OP, ReduceOp::name) } else { NO_OP },
        ranks: comm.ranks(),
        nodes: comm.topology().nodes(),
        transport: comm.transport(),
        memory: memory.name(),
        time_us,
        skew_percent: Times::of(skew).p50,
        algbw_gb_per_s,
        busbw_gb_per_s: algbw_gb_per_s * operation.bus_factor(comm.ranks()),
        wrong: wrong[0] + barrier::left_early(comm, &moments)?,
        predicted_us: predicted,
        oversubscribed: comm.is_oversubscribed(),
    })
}
