//! Compares every element type and reduction with the host's result, at counts around which the code path changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use half::{bf16, f16};
use unisono::{Algorithm, Choice, Communicator, Error, ReduceOp, nccl};

use crate::report::{Failure, Figures, Outcome};
use crate::settings::Settings;
use crate::values::{self, Number};

/// No elements, fewer elements than chunks, odd numbers, primes (so that no two parts are equal), and counts with unequal segments.
const COUNTS: [usize; 10] = [0, 1, 2, 3, 7, 31, 1009, 4099, 65_537, 1_000_003];
/// Elements before and after the array, which must not change.
const MARGIN: usize = 3;

/// The results so far.
#[derive(Debug, Default)]
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
    let mut seen = Seen::default();
    with_type::<f32>(comm, settings, &mut seen)?;
    with_type::<f64>(comm, settings, &mut seen)?;
    with_type::<f16>(comm, settings, &mut seen)?;
    with_type::<bf16>(comm, settings, &mut seen)?;
    with_type::<i32>(comm, settings, &mut seen)?;
    with_type::<i64>(comm, settings, &mut seen)?;
    with_type::<u8>(comm, settings, &mut seen)?;
    with_type::<u32>(comm, settings, &mut seen)?;
    with_type::<u64>(comm, settings, &mut seen)?;
    seen.outcome(comm, settings, route)
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

fn with_type<T: Number>(
    comm: &mut Communicator,
    settings: &Settings,
    seen: &mut Seen,
) -> Result<(), Failure> {
    // Odd, and not a multiple of any element size or count.
    let largest = settings.largest_bytes / size_of::<T>() + 13;
    let counts = COUNTS.into_iter().filter(|&count| count < largest).chain([largest]);
    let mut arrays = Arrays::<T> {
        device: comm.alloc_device(largest + 2 * MARGIN)?,
        stream: comm.device()?.new_stream()?,
        input: vec![T::of(0); largest + 2 * MARGIN],
        output: vec![T::of(0); largest + 2 * MARGIN],
    };
    for count in counts {
        for op in ReduceOp::ALL.into_iter().filter(|op| op.is_defined_for(T::DTYPE)) {
            values::exact(&mut arrays.input[..count + 2 * MARGIN], op, comm.rank(), seen.calls);
            let Some(ran) = arrays.reduce(comm, settings, op, count, seen)? else { continue };
            arrays.compare(comm, op, count, &Choice::Auto, seen)?;
            // Unisono's algorithms give the host's bits. A vendor library adds in its own order.
            let own = ran.parse::<Algorithm>().ok().map(Choice::from);
            let (rank, input) = (comm.rank(), &mut arrays.input[..count + 2 * MARGIN]);
            if let Some(own) = own
                && values::inexact(input, rank, seen.calls)
                && arrays.reduce(comm, settings, op, count, seen)?.is_some()
            {
                arrays.compare(comm, op, count, &own, seen)?;
                seen.same_bits += 1;
            }
        }
    }
    Ok(())
}

/// An array in host and device memory, with margins.
struct Arrays<T> {
    device: CudaSlice<T>,
    stream: Arc<CudaStream>,
    input: Vec<T>,
    output: Vec<T>,
}

impl<T: Number> Arrays<T> {
    /// Reduces the input on the GPU. Returns the name of the method, or `None` if the call is refused.
    fn reduce(
        &mut self,
        comm: &mut Communicator,
        settings: &Settings,
        op: ReduceOp,
        count: usize,
        seen: &mut Seen,
    ) -> Result<Option<&'static str>, Failure> {
        let Self { device, stream, input, output } = self;
        let all = count + 2 * MARGIN;
        stream.memcpy_htod(&input[..all], &mut device.slice_mut(..all))?;
        comm.set_choice(settings.choice.clone())?;
        // The array begins at an odd element.
        let mut array = device.slice_mut(MARGIN..MARGIN + count);
        let ran = match comm.all_reduce_device(&mut array, op, stream) {
            Err(Error::Unsupported(why)) => {
                *seen.refused.entry(why).or_default() += 1;
                return Ok(None);
            }
            ran => ran?,
        };
        comm.synchronize(stream)?;
        stream.memcpy_dtoh(&device.slice(..all), &mut output[..all])?;
        stream.synchronize()?;
        *seen.ran.entry(ran.method.name()).or_default() += 1;
        Ok(Some(ran.method.name()))
    }

    /// Reduces the same input on the host with the given choice, and counts differences.
    fn compare(
        &mut self,
        comm: &mut Communicator,
        op: ReduceOp,
        count: usize,
        by: &Choice,
        seen: &mut Seen,
    ) -> Result<(), Failure> {
        let Self { input, output, .. } = self;
        comm.set_choice(by.clone())?;
        comm.all_reduce(&mut input[MARGIN..MARGIN + count], op)?;
        let all = count + 2 * MARGIN;
        // Where bits are compared, the signs of zeros must agree.
        let differs = |expected: T, found: T| match by {
            Choice::Auto => expected != found,
            _ => expected.bits() != found.bits(),
        };
        for (place, (&expected, &found)) in input[..all].iter().zip(&output[..all]).enumerate() {
            if differs(expected, found) {
                seen.wrong += 1;
                let what = || {
                    let place = place as i64 - MARGIN as i64;
                    format!(
                        "{op} of {count} {}: element {place} is {found:?}, but {expected:?} on the host",
                        T::DTYPE
                    )
                };
                seen.first.get_or_insert_with(what);
            }
        }
        seen.calls += 1;
        seen.elements += count as u64;
        Ok(())
    }
}

impl Seen {
    /// Combines the results of all ranks.
    fn outcome(self, comm: &mut Communicator, settings: &Settings, route: &str) -> Outcome {
        let mut of_all = [self.wrong];
        comm.set_choice(Choice::Auto)?;
        comm.all_reduce(&mut of_all, ReduceOp::Sum)?;
        let figures = Figures::default()
            .with("ranks", comm.ranks())
            .with("nodes", comm.topology().nodes())
            .with("algorithm", settings.choice.to_string())
            .with("route", route)
            .with("calls", self.calls)
            .with("calls_with_the_hosts_bits", self.same_bits)
            .with("elements", self.elements)
            .with("wrong", of_all[0])
            .with("ran", serde_json::json!(self.ran))
            .with("refused", serde_json::json!(self.refused));
        if of_all[0] > 0 {
            let first = self.first.unwrap_or_else(|| "on another rank than 0".to_owned());
            return Err(Failure::Missed(
                format!("{} elements were wrong; the first: {first}", of_all[0]),
                figures,
            ));
        }
        match &settings.must_run {
            Some(name) if !self.ran.contains_key(&**name) => {
                let why = format!("no element was wrong, but {name} was never used");
                Err(Failure::Missed(why, figures))
            }
            _ => Ok(figures),
        }
    }
}
