//! Measuring all-reduces, honestly: against a barrier, slowest rank first, every result checked, contenders
//! taking turns.

use half::{bf16, f16};
use unisono_collectives::named;

use crate::Communicator;
use crate::call::Call;
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::reduce::{ReduceOp, for_dtype};
use crate::select::Choice;

mod array;
mod pattern;

pub(crate) use array::Array;
use pattern::Pattern;

/// What is measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Who takes part; they take turns, iteration by iteration.
    pub contenders: Vec<Choice>,
    /// The sizes of the array.
    pub sizes_bytes: Vec<usize>,
    /// The type of its elements.
    pub dtype: DType,
    /// The reduction.
    pub op: ReduceOp,
    /// The kind of memory that the array is in.
    pub memory: Memory,
    /// How often each contender is measured at each size; by default as often as is worth while for the size.
    pub iterations: Option<usize>,
}

impl Settings {
    /// What is measured at a size: at least one element.
    fn call(&self, size_bytes: usize) -> Call {
        Call::all_reduce(self.dtype, self.op, (size_bytes / self.dtype.size_bytes()).max(1))
    }
}

/// Kinds of memory that an array can be in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Memory {
    /// Any slice.
    #[default]
    Slice,
    /// What [`Communicator::alloc`] gives.
    Registered,
    /// The memory of each rank's GPU. Times are those until the GPU is done.
    Device,
}

impl Memory {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Slice, Self::Registered, Self::Device];
    /// Those that the host reaches.
    pub(crate) const HOST: [Self; 2] = [Self::Slice, Self::Registered];

    /// The name on the command line and in every table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slice => "slice",
            Self::Registered => "registered",
            Self::Device => "device",
        }
    }
}

named!(Memory, "kind of memory");

/// Times of a set of iterations, each that of the slowest rank.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "cli", derive(serde::Serialize))]
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
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "cli", derive(serde::Serialize))]
pub struct Row {
    /// What was asked for.
    pub algorithm: String,
    /// What ran.
    pub ran: &'static str,
    /// The size of the array.
    pub bytes: usize,
    /// The number of its elements.
    pub count: usize,
    /// Their type.
    pub dtype: &'static str,
    /// The reduction.
    pub op: &'static str,
    /// The number of ranks.
    pub ranks: usize,
    /// The number of nodes.
    pub nodes: usize,
    /// How messages travel.
    pub transport: &'static str,
    /// What kind of memory the array is in.
    pub memory: &'static str,
    /// The time of one all-reduce: for each iteration that of the slowest rank.
    pub time_us: Times,
    /// By how much the fastest rank is ahead of the slowest: the median over iterations, in percent of the
    /// slowest.
    pub skew_percent: f64,
    /// Bytes of the array over the median time, in 1e9 bytes a second.
    pub algbw_gb_per_s: f64,
    /// The same times 2(p−1)/p: what a link must carry at least. Comparable between worlds (nccl-tests'
    /// definition).
    pub busbw_gb_per_s: f64,
    /// How many elements were wrong, on the rank and in the iteration where most were.
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

/// Measures every size, and hands over a row for each contender. Called by all ranks with the same
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
    for &size_bytes in &settings.sizes_bytes {
        let contenders = for_dtype!(settings.dtype, measure_size(comm, settings, size_bytes))?;
        for contender in contenders {
            match contender.unable {
                Some(why) if left_out.iter().all(|(choice, _)| *choice != contender.choice) => {
                    left_out.push((contender.choice, why));
                }
                Some(_) => {}
                None => report(row(comm, settings, size_bytes, contender)?),
            }
        }
    }
    Ok(left_out)
}

/// What one contender showed at one size, on this rank.
struct Contender {
    choice: Choice,
    ran: &'static str,
    times_us: Vec<f64>,
    wrong: u64,
    /// Why it cannot do what is asked for.
    unable: Option<String>,
}

fn measure_size<T: Element + From<u8>>(
    comm: &mut Communicator,
    settings: &Settings,
    size_bytes: usize,
) -> Result<Vec<Contender>> {
    let call = settings.call(size_bytes);
    let pattern = Pattern::<T>::new(settings.op, comm.ranks());
    let mut array = Array::<T>::new(settings.memory, comm, call.count)?;
    let iterations = settings
        .iterations
        .unwrap_or_else(|| (WORTH_BYTES / call.size_bytes()).clamp(*ITERATIONS.start(), *ITERATIONS.end()));
    let new = |choice: &Choice| Contender {
        choice: choice.clone(),
        ran: "",
        times_us: Vec::with_capacity(iterations),
        wrong: 0,
        unable: None,
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
            array.fill(|elements| pattern.fill(elements, comm.rank()))?;
            let (ran, time_us) = match array.timed(comm, &contender.choice, &call) {
                Err(Error::Unsupported(why)) => {
                    contender.unable = Some(why);
                    continue;
                }
                timed => timed?,
            };
            contender.ran = ran.algorithm;
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
    comm.all_reduce(&mut times_us, ReduceOp::Max)?;
    Ok(Times::of(times_us))
}

/// Puts together what all ranks saw of a contender.
fn row(comm: &mut Communicator, settings: &Settings, size_bytes: usize, contender: Contender) -> Result<Row> {
    let (call, memory) = (settings.call(size_bytes), settings.memory);
    let Contender { choice, ran, times_us, wrong, .. } = contender;
    let (mut slowest, mut fastest, mut wrong) = (times_us.clone(), times_us, [wrong]);
    comm.all_reduce(&mut slowest, ReduceOp::Max)?;
    comm.all_reduce(&mut fastest, ReduceOp::Min)?;
    comm.all_reduce(&mut wrong, ReduceOp::Max)?;
    let skew =
        slowest.iter().zip(fastest).map(|(slowest, fastest)| 100.0 * (slowest - fastest) / slowest).collect();
    let time_us = Times::of(slowest);
    let algbw_gb_per_s = call.size_bytes() as f64 / time_us.p50 / 1e3;
    let ranks = comm.ranks() as f64;
    let is_on_host = Memory::HOST.contains(&memory);
    let planned = ran.parse().ok().filter(|_| is_on_host);
    let predicted = planned.and_then(|algorithm| comm.predicted_us(algorithm, &call, memory));
    Ok(Row {
        algorithm: choice.to_string(),
        ran,
        bytes: call.size_bytes(),
        count: call.count,
        dtype: call.dtype.name(),
        op: call.op.map_or("", ReduceOp::name),
        ranks: comm.ranks(),
        nodes: comm.topology().nodes(),
        transport: comm.transport(),
        memory: memory.name(),
        time_us,
        skew_percent: Times::of(skew).p50,
        algbw_gb_per_s,
        busbw_gb_per_s: algbw_gb_per_s * 2.0 * (ranks - 1.0) / ranks,
        wrong: wrong[0],
        predicted_us: predicted,
        oversubscribed: comm.is_oversubscribed(),
    })
}
