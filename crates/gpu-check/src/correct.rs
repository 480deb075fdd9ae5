//! Compares every element type and reduction with the host's result, at counts around which the code path changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use half::{bf16, f16};
use unisono::{Algorithm, Choice, Communicator, Error, ReduceOp, nccl};

use crate::report::{Failure, Figures, Outcome, sum_of_all};
use crate::settings::Settings;
use crate::values::{self, Number};

/// No elements, fewer elements than chunks, odd numbers, primes (so that no two parts are equal), and counts with unequal segments.
const COUNTS: [usize; 10] = [0, 1, 2, 3, 7, 31, 1009, 4099, 65_537, 1_000_003];
/// Elements before and after the array, which must not change.
const MARGIN: usize = 3;

/// The comparison on this rank.
struct Comparison<'a> {
    comm: &'a mut Communicator,
    settings: &'a Settings,
    seen: Seen,
}

/// The results so far.
#[derive(Default)]
struct Seen {
    calls: u64,
    elements: u64,
    wrong: u64,
    /// The first wrong element of this rank, as text.
    first: Option<String>,
    /// The number of calls by method.
    ran: BTreeMap<&'static str, u64>,
    /// The number of calls on inexact values whose result has the host's bits.
    same_bits: u64,
    refused: BTreeMap<String, u64>,
}

pub(crate) fn check(comm: &mut Communicator, settings: &Settings, route: &str) -> Outcome {
    without_nccl(settings.must_run.as_deref(), route)?;
    let mut all = Comparison { comm, settings, seen: Seen::default() };
    all.with_type::<f32>()?;
    all.with_type::<f64>()?;
    all.with_type::<f16>()?;
    all.with_type::<bf16>()?;
    all.with_type::<i32>()?;
    all.with_type::<i64>()?;
    all.with_type::<u8>()?;
    all.with_type::<u32>()?;
    all.with_type::<u64>()?;
    all.outcome(route)
}

/// Skips a check that requires NCCL if NCCL is unavailable here, and fails if it is available but not used.
pub(crate) fn without_nccl(must_run: Option<&str>, route: &str) -> Result<(), Failure> {
    let is_wanted = must_run.is_some_and(|name| name.contains("nccl"));
    if !is_wanted || !route.contains("through the host") {
        return Ok(());
    }
    let library = nccl::library().map_err(|error| Failure::Skipped(error.to_string()))?;
    if !library.version().multi_rank_gpu() && route.contains("share a GPU") {
        return Err(Failure::Skipped(format!(
            "{route}; NCCL is {}, but ranks may share a GPU only from 2.30.3 on",
            library.version()
        )));
    }
    Err(Failure::Failed(format!("NCCL {} is available, but arrays are reduced {route}", library.version())))
}

/// An array in host and device memory, with margins.
struct Arrays<T> {
    device: CudaSlice<T>,
    stream: Arc<CudaStream>,
    input: Vec<T>,
    output: Vec<T>,
}

impl Comparison<'_> {
    fn with_type<T: Number>(&mut self) -> Result<(), Failure> {
        // Odd, and not a multiple of any element size or count.
        let largest = self.settings.largest_bytes / size_of::<T>() + 13;
        let counts = COUNTS.into_iter().filter(|&count| count < largest).chain([largest]);
        let mut arrays = Arrays::<T> {
            device: self.comm.alloc_device(largest + 2 * MARGIN)?,
            stream: self.comm.device()?.new_stream()?,
            input: vec![T::of(0); largest + 2 * MARGIN],
            output: vec![T::of(0); largest + 2 * MARGIN],
        };
        for count in counts {
            for op in ReduceOp::ALL.into_iter().filter(|op| op.is_defined_for(T::DTYPE)) {
                let (rank, all) = (self.comm.rank(), count + 2 * MARGIN);
                values::exact(&mut arrays.input[..all], op, rank, self.seen.calls);
                let Some(ran) = self.reduce(&mut arrays, op, count)? else { continue };
                self.compare(&mut arrays, op, count, &Choice::Auto)?;
                // Unisono's algorithms give the host's bits. A vendor library adds in its own order.
                if let Ok(own) = ran.parse::<Algorithm>()
                    && values::inexact(&mut arrays.input[..all], rank, self.seen.calls)
                    && self.reduce(&mut arrays, op, count)?.is_some()
                {
                    self.compare(&mut arrays, op, count, &own.into())?;
                    self.seen.same_bits += 1;
                }
            }
        }
        Ok(())
    }

    /// Reduces the input on the GPU. Returns the name of the method, or `None` if the call is refused.
    fn reduce<T: Number>(
        &mut self,
        arrays: &mut Arrays<T>,
        op: ReduceOp,
        count: usize,
    ) -> Result<Option<&'static str>, Failure> {
        let Arrays { device, stream, input, output } = arrays;
        let all = count + 2 * MARGIN;
        stream.memcpy_htod(&input[..all], &mut device.slice_mut(..all))?;
        self.comm.set_choice(self.settings.choice.clone())?;
        // The array begins at an odd element.
        let mut array = device.slice_mut(MARGIN..MARGIN + count);
        let ran = match self.comm.all_reduce_device(&mut array, op, stream) {
            Err(Error::Unsupported(why)) => {
                *self.seen.refused.entry(why).or_default() += 1;
                return Ok(None);
            }
            ran => ran?,
        };
        self.comm.synchronize(stream)?;
        stream.memcpy_dtoh(&device.slice(..all), &mut output[..all])?;
        stream.synchronize()?;
        *self.seen.ran.entry(ran.method.name()).or_default() += 1;
        Ok(Some(ran.method.name()))
    }

    /// Reduces the same input on the host with the given choice, and counts differences.
    fn compare<T: Number>(
        &mut self,
        arrays: &mut Arrays<T>,
        op: ReduceOp,
        count: usize,
        by: &Choice,
    ) -> Result<(), Failure> {
        let Arrays { input, output, .. } = arrays;
        self.comm.set_choice(by.clone())?;
        self.comm.all_reduce(&mut input[MARGIN..MARGIN + count], op)?;
        let all = count + 2 * MARGIN;
        // Where bits are compared, the signs of zeros must agree.
        let differs = |expected: T, found: T| match by {
            Choice::Auto => expected != found,
            _ => expected.bits() != found.bits(),
        };
        for (place, (&expected, &found)) in input[..all].iter().zip(&output[..all]).enumerate() {
            if differs(expected, found) {
                self.seen.wrong += 1;
                let what = || {
                    let (place, dtype) = (place as i64 - MARGIN as i64, T::DTYPE);
                    format!(
                        "{op} of {count} {dtype}: element {place} is {found:?}, but {expected:?} on the host"
                    )
                };
                self.seen.first.get_or_insert_with(what);
            }
        }
        self.seen.calls += 1;
        self.seen.elements += count as u64;
        Ok(())
    }

    /// Combines the results of all ranks.
    fn outcome(self, route: &str) -> Outcome {
        let Self { comm, settings, seen } = self;
        let wrong = sum_of_all(comm, seen.wrong)?;
        let unused = settings.must_run.as_ref().filter(|name| !seen.ran.contains_key(&***name));
        let why = if wrong > 0 {
            let first = seen.first.unwrap_or_else(|| "on another rank than 0".to_owned());
            Some(format!("{wrong} elements were wrong; the first: {first}"))
        } else {
            unused.map(|name| format!("no element was wrong, but {name} was never used"))
        };
        let figures = Figures::of(comm, route)
            .with("nodes", comm.topology().nodes())
            .with("algorithm", settings.choice.to_string())
            .with("calls", seen.calls)
            .with("calls_with_the_hosts_bits", seen.same_bits)
            .with("elements", seen.elements)
            .with("wrong", wrong)
            .with("ran", serde_json::json!(seen.ran))
            .with("refused", serde_json::json!(seen.refused));
        figures.unless(why)
    }
}
