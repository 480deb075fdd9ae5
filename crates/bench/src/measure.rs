//! Measurements of collectives.

use unisono::internals::{Array, OF_BARRIER};
use unisono::{Call, Choice, Communicator, DType, Element, Error, Memory, ReduceOp, Result, with_type};

mod barrier;
pub mod compressed;
mod messages;
mod operation;
mod overlap;
mod pattern;
mod room;

pub use operation::Operation;
use pattern::Pattern;
pub use room::room;

/// The subject of a measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The choices to compare, which alternate from iteration to iteration.
    pub contenders: Vec<Choice>,
    /// The operations, measured one after the other.
    pub operations: Vec<Operation>,
    /// The array sizes.
    pub sizes_bytes: Vec<usize>,
    /// The type of its elements.
    pub dtype: DType,
    /// The reduction, if the operation reduces.
    pub op: ReduceOp,
    /// The kind of memory that holds the array.
    pub memory: Memory,
    /// The number of iterations of each contender at each size, at least one. By default it depends on the size.
    pub iterations: Option<usize>,
    /// The number of unmeasured iterations at the start.
    pub warm_up: usize,
    /// Whether every result is compared with independently computed values.
    pub checks: bool,
    /// Whether to measure the fraction of the asynchronous form that computation hides.
    pub overlap: bool,
}

/// Statistics of the times of a set of iterations, each the time of the slowest rank.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[expect(missing_docs, reason = "the names of order statistics are self-explanatory")]
pub struct Times {
    pub min: f64,
    pub p50: f64,
    pub p95: f64,
    pub max: f64,
}

impl Times {
    /// Returns the statistics of a non-empty set.
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
    /// The choice that was requested.
    pub algorithm: String,
    /// The method that ran.
    pub ran: &'static str,
    /// The operation.
    pub operation: &'static str,
    /// The size of the array.
    pub bytes: usize,
    /// The number of its elements.
    pub count: usize,
    /// Their type.
    pub dtype: &'static str,
    /// The reduction; `none` if values are only moved.
    pub op: &'static str,
    /// The number of ranks.
    pub ranks: usize,
    /// The number of nodes.
    pub nodes: usize,
    /// The links between ranks.
    pub transport: &'static str,
    /// The kind of memory that holds the array.
    pub memory: &'static str,
    /// The time of one call: in each iteration the time of the slowest rank. For messages, half the time of a round trip between
    /// the first and the last rank.
    pub time_us: Times,
    /// The lead of the fastest rank over the slowest: the median over iterations, in percent of the slowest.
    pub skew_percent: f64,
    /// Array bytes divided by the median time, in 1e9 bytes per second. For messages, with 64 in flight.
    pub algbw_gb_per_s: f64,
    /// The bus bandwidth: `algbw` times 2(p−1)/p for an all-reduce, and times the factor of nccl-tests for other operations. It is
    /// the minimum that a link must carry, comparable between worlds.
    pub busbw_gb_per_s: f64,
    /// The number of wrong elements, in the rank and iteration with the most; for a barrier, the number of iterations in which a
    /// rank left before all had arrived. Null if results were not checked.
    pub wrong: Option<u64>,
    /// The prediction of the cost model for the method that ran; null for a vendor's method.
    pub predicted_us: Option<f64>,
    /// Whether ranks outnumber cores, so that times are not representative of the algorithm.
    pub oversubscribed: bool,
    /// The share of the asynchronous form that computation hides, in percent; null unless measured.
    pub overlap_percent: Option<f64>,
}

#[derive(Debug, Clone, Copy)]
struct Effort {
    warm_up: usize,
    iterations: usize,
    checks: bool,
}

/// The number of bytes to process for a row, and the minimum and maximum number of iterations.
const WORTH_BYTES: usize = 1 << 28;
const ITERATIONS: std::ops::RangeInclusive<usize> = 10..=1000;

/// Measures every operation at every size, and passes on a row for each contender. All ranks call it with the same settings, and
/// get the same rows.
///
/// Skips contenders that cannot run, and returns them with the reasons.
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
        let call = |&bytes: &usize| operation.call(settings.dtype, settings.op, bytes, comm.ranks());
        let mut calls: Vec<_> = sizes.iter().map(call).collect();
        // Small sizes may be rounded to the same number of elements.
        calls.dedup_by_key(|call| call.count);
        for call in calls {
            let task = Task { operation, call, settings };
            if operation == Operation::SendRecv {
                let others = settings.contenders.iter().filter(|&choice| *choice != Choice::Auto);
                left_out.extend(others.map(|choice| (choice.clone(), not_supported(operation))));
                match with_type!(call.dtype, T => messages_row::<T>(comm, &task))? {
                    Ok(row) => report(row),
                    Err(why) => left_out.push((Choice::Auto, why)),
                }
                left_out.sort_by_key(|(choice, _)| choice.to_string());
                left_out.dedup();
                continue;
            }
            for contender in with_type!(call.dtype, T => measure_call::<T>(comm, &task))? {
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

struct Task<'a> {
    operation: Operation,
    call: Call,
    settings: &'a Settings,
}

impl Task<'_> {
    fn effort(&self) -> Effort {
        let worth = WORTH_BYTES / self.call.size_bytes().max(1);
        let iterations =
            self.settings.iterations.unwrap_or_else(|| worth.clamp(*ITERATIONS.start(), *ITERATIONS.end()));
        Effort { warm_up: self.settings.warm_up, iterations: iterations.max(1), checks: self.settings.checks }
    }

    /// The reason to skip a contender, if another method would run instead.
    fn unable(&self, comm: &Communicator, choice: &Choice) -> Option<String> {
        let Self { operation, settings, .. } = *self;
        if settings.memory == Memory::Device && operation.collective() != Some(unisono::Operation::AllReduce)
        {
            return Some(format!("arrays on GPUs support only all-reduce, not {operation}"));
        }
        let algorithm = choice.method()?.algorithm()?;
        let offers = match operation.collective() {
            Some(collective) => algorithm.plan(collective, comm.topology(), comm.rank()).is_some(),
            None => *choice == Choice::from(OF_BARRIER),
        };
        (!offers).then(|| not_supported(operation))
    }

    /// Returns the row of a contender with these times, without the fields that not all operations have.
    fn row(
        &self,
        comm: &Communicator,
        choice: &Choice,
        ran: &'static str,
        time_us: Times,
        algbw_gb_per_s: f64,
    ) -> Row {
        let Self { operation, ref call, settings } = *self;
        Row {
            algorithm: choice.to_string(),
            ran,
            operation: operation.name(),
            bytes: call.size_bytes(),
            count: call.count,
            dtype: call.dtype.name(),
            // As in nccl-tests.
            op: call.op.filter(|_| operation.reduces()).map_or("none", ReduceOp::name),
            ranks: comm.ranks(),
            nodes: comm.topology().nodes(),
            transport: comm.transport(),
            memory: settings.memory.name(),
            time_us,
            skew_percent: 0.0,
            algbw_gb_per_s,
            busbw_gb_per_s: algbw_gb_per_s * operation.bus_factor(comm.ranks()),
            wrong: None,
            predicted_us: None,
            oversubscribed: comm.is_oversubscribed(),
            overlap_percent: None,
        }
    }
}

fn not_supported(operation: Operation) -> String {
    format!("{operation} is not supported")
}

/// The measurements of one contender at one size, on this rank.
struct Contender {
    choice: Choice,
    ran: &'static str,
    times_us: Vec<f64>,
    wrong: u64,
    /// The times at which this rank reached and left each barrier.
    moments: Vec<barrier::Moments>,
    unable: Option<String>,
    overlap_percent: Option<f64>,
}

fn measure_call<T: Element + From<u8>>(comm: &mut Communicator, task: &Task<'_>) -> Result<Vec<Contender>> {
    let Task { operation, ref call, settings } = *task;
    let pattern = Pattern::<T>::new(call, comm.rank(), comm.ranks());
    let mut array = Array::<T>::new(settings.memory, comm, call.count)?;
    let effort @ Effort { warm_up, iterations, checks } = task.effort();
    let new = |choice: &Choice| Contender {
        choice: choice.clone(),
        ran: "",
        times_us: Vec::with_capacity(iterations),
        wrong: 0,
        moments: Vec::new(),
        unable: task.unable(comm, choice),
        overlap_percent: None,
    };
    let mut contenders: Vec<_> = settings.contenders.iter().map(new).collect();
    for iteration in 0..warm_up + iterations {
        for turn in 0..contenders.len() {
            // Earlier calls affect caches and the scheduling of other ranks, so all contenders are first equally often.
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
            if checks {
                contender.wrong = contender.wrong.max(pattern.count_wrong(array.elements()?));
            }
            if iteration >= warm_up {
                contender.times_us.push(time_us);
            }
        }
    }
    let is_measurable = settings.overlap && settings.memory != Memory::Device;
    for contender in contenders.iter_mut().filter(|contender| is_measurable && contender.unable.is_none()) {
        if operation != Operation::Barrier {
            let choice = &contender.choice;
            contender.overlap_percent = if settings.memory == Memory::Registered {
                let buffer = comm.alloc::<T>(call.count)?;
                overlap::percent(comm, choice, call, effort, buffer)?
            } else {
                overlap::percent(comm, choice, call, effort, vec![T::from(0); call.count])?
            };
        }
    }
    Ok(contenders)
}

/// Statistics of the time of the slowest rank in each iteration.
fn slowest(comm: &mut Communicator, mut times_us: Vec<f64>) -> Result<Times> {
    comm.call().algorithm(Choice::Auto).all_reduce(&mut times_us, ReduceOp::Max)?;
    Ok(Times::of(times_us))
}

fn row(comm: &mut Communicator, task: &Task<'_>, contender: Contender) -> Result<Row> {
    let Task { call, settings: &Settings { memory, checks, .. }, .. } = *task;
    let Contender { choice, ran, times_us, wrong, moments, overlap_percent, .. } = contender;
    let (mut slowest, mut fastest, mut wrong) = (times_us.clone(), times_us, [wrong]);
    comm.call().algorithm(Choice::Auto).all_reduce(&mut slowest, ReduceOp::Max)?;
    comm.call().algorithm(Choice::Auto).all_reduce(&mut fastest, ReduceOp::Min)?;
    comm.call().algorithm(Choice::Auto).all_reduce(&mut wrong, ReduceOp::Max)?;
    let skew =
        slowest.iter().zip(fastest).map(|(slowest, fastest)| 100.0 * (slowest - fastest) / slowest).collect();
    let time_us = Times::of(slowest);
    let algbw_gb_per_s = call.size_bytes() as f64 / time_us.p50 / 1e3;
    let planned = ran.parse().ok().filter(|_| memory != Memory::Device);
    Ok(Row {
        skew_percent: Times::of(skew).p50,
        wrong: if checks { Some(wrong[0] + barrier::left_early(comm, &moments)?) } else { None },
        predicted_us: planned.and_then(|algorithm| comm.predicted_us(algorithm, &call, memory)),
        overlap_percent,
        ..task.row(comm, &choice, ran, time_us, algbw_gb_per_s)
    })
}

/// Measures messages. Returns the reason if they cannot be measured.
fn messages_row<T: Element + From<u8>>(
    comm: &mut Communicator,
    task: &Task<'_>,
) -> Result<std::result::Result<Row, String>> {
    let Task { operation, ref call, settings } = *task;
    let is_chosen = settings.contenders.contains(&Choice::Auto);
    if comm.ranks() == 1 || settings.memory != Memory::Slice || !is_chosen {
        return Ok(Err(format!(
            "{operation} requires at least 2 ranks, --memory slice and --algorithm auto"
        )));
    }
    let measured = messages::measure::<T>(comm, call.count, task.effort())?;
    let time_us = slowest(comm, measured.half_trips_us)?;
    let window_us = slowest(comm, measured.windows_us)?.p50;
    let mut wrong = [measured.wrong];
    comm.call().algorithm(Choice::Auto).all_reduce(&mut wrong, ReduceOp::Max)?;
    let gb_per_s = (measured.window * call.size_bytes()) as f64 / window_us / 1e3;
    let row = task.row(comm, &Choice::Auto, operation.name(), time_us, gb_per_s);
    Ok(Ok(Row { wrong: settings.checks.then_some(wrong[0]), ..row }))
}
