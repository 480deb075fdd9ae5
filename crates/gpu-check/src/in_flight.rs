//! All-reduces concurrent with other work of the GPU: several at once, each on its own stream, with copies enqueued before and after that are still
//! pending when the call is made.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DriverError};
use unisono::{Communicator, DeviceRequest, ReduceOp};

use crate::correct::without_nccl;
use crate::report::{Failure, Figures, Outcome, sum_of_all};
use crate::settings::Settings;
use crate::values;

const COUNTS: [usize; 6] = [1, 1009, 65_537, 1_000_003, 4_194_301, 3];
const ROUNDS: u64 = 4;
/// The bytes that a stream copies before it copies the input. They are enough to reveal a call that does not wait for the input.
const BALLAST_BYTES: usize = 64 << 20;
const BALLAST_COPIES: usize = 8;

pub(crate) fn check(comm: &mut Communicator, settings: &Settings, route: &str) -> Outcome {
    without_nccl(settings.must_run.as_deref(), route)?;
    let context = comm.device()?;
    let tracked = rounds(comm, settings, &context, 0)?;
    // cudarc tracks the users of an array, and makes streams wait for each other. Without this tracking, only Unisono's ordering remains. SAFETY:
    // every array created from here on is used on streams that wait for each other, and is freed after its context has been synchronised.
    unsafe { context.disable_event_tracking() };
    let untracked = rounds(comm, settings, &context, ROUNDS)?;
    let wrong = sum_of_all(comm, tracked + untracked)?;
    let figures = Figures::of(comm, route)
        .with("nodes", comm.topology().nodes())
        .with("algorithm", settings.choice.to_string())
        .with("calls", 2 * 2 * ROUNDS * COUNTS.len() as u64)
        .with("wrong", wrong);
    figures.unless((wrong > 0).then(|| format!("{wrong} elements were wrong")))
}

/// An array, with the work enqueued around its all-reduce.
struct Lane {
    stream: Arc<CudaStream>,
    input: CudaSlice<f32>,
    /// `None` while in flight.
    array: Option<CudaSlice<f32>>,
    result: CudaSlice<f32>,
    ballast: [CudaSlice<u8>; 2],
    expected: Vec<f32>,
}

impl Lane {
    fn new(context: &Arc<CudaContext>, count: usize) -> Result<Self, DriverError> {
        let stream = context.new_stream()?;
        let lane = Self {
            input: stream.alloc_zeros(count)?,
            array: Some(stream.alloc_zeros(count)?),
            result: stream.alloc_zeros(count)?,
            ballast: [stream.alloc_zeros(BALLAST_BYTES)?, stream.alloc_zeros(BALLAST_BYTES)?],
            expected: vec![0.0; count],
            stream,
        };
        lane.stream.synchronize()?;
        Ok(lane)
    }

    /// Copies the input to the GPU, and computes the expected result.
    fn begin(&mut self, comm: &mut Communicator, call: u64) -> Result<(), Failure> {
        values::exact(&mut self.expected, ReduceOp::Sum, comm.rank(), call);
        self.stream.memcpy_htod(&self.expected, &mut self.input)?;
        self.stream.synchronize()?;
        comm.all_reduce(&mut self.expected, ReduceOp::Sum)?;
        Ok(())
    }

    /// Enqueues a large amount of work, and then a copy of the input to the array.
    fn queue_before(&mut self) -> Result<CudaSlice<f32>, DriverError> {
        let [from, to] = &mut self.ballast;
        for _ in 0..BALLAST_COPIES {
            self.stream.memcpy_dtod(from, to)?;
        }
        let mut array = self.array.take().expect("the call before is over");
        self.stream.memcpy_dtod(&self.input, &mut array)?;
        Ok(array)
    }

    /// Enqueues a copy of the array to the result, and then a write that overwrites the array.
    fn queue_after(&mut self, array: CudaSlice<f32>, stream: &Arc<CudaStream>) -> Result<(), DriverError> {
        let array = self.array.insert(array);
        stream.memcpy_dtod(array, &mut self.result)?;
        stream.memset_zeros(array)
    }

    fn count_wrong(&self, stream: &Arc<CudaStream>) -> Result<u64, DriverError> {
        let found = stream.clone_dtoh(&self.result)?;
        stream.synchronize()?;
        Ok(found.iter().zip(&self.expected).filter(|(found, expected)| found != expected).count() as u64)
    }
}

/// Counts the wrong elements of this rank.
fn rounds(
    comm: &mut Communicator,
    settings: &Settings,
    context: &Arc<CudaContext>,
    first: u64,
) -> Result<u64, Failure> {
    let lanes = COUNTS.into_iter().map(|count| Lane::new(context, count));
    let mut lanes = lanes.collect::<Result<Vec<_>, _>>()?;
    let counted = in_rounds(comm, settings, context, &mut lanes, first);
    // Even after an error, arrays must be freed only after this call.
    let done = context.synchronize();
    let wrong = counted?;
    done?;
    Ok(wrong)
}

fn in_rounds(
    comm: &mut Communicator,
    settings: &Settings,
    context: &Arc<CudaContext>,
    lanes: &mut [Lane],
    first: u64,
) -> Result<u64, Failure> {
    let after = context.new_stream()?;
    let mut wrong = 0;
    for round in first..first + ROUNDS {
        for is_in_flight in [true, false] {
            comm.set_choice(unisono::Choice::Auto)?;
            for (lane, number) in lanes.iter_mut().zip(0..) {
                lane.begin(comm, (round * 2 + u64::from(is_in_flight)) * 10 + number)?;
            }
            comm.set_choice(settings.choice.clone())?;
            if is_in_flight {
                all_in_flight(comm, lanes, &after)?;
            } else {
                one_by_one(comm, lanes)?;
            }
            for lane in &*lanes {
                let stream = if is_in_flight { &after } else { &lane.stream };
                comm.synchronize(stream)?;
                wrong += lane.count_wrong(stream)?;
            }
        }
    }
    Ok(wrong)
}

fn all_in_flight(
    comm: &mut Communicator,
    lanes: &mut [Lane],
    after: &Arc<CudaStream>,
) -> Result<(), Failure> {
    let mut in_flight: Vec<DeviceRequest<CudaSlice<f32>>> = Vec::new();
    for lane in &mut *lanes {
        let array = lane.queue_before()?;
        in_flight.push(comm.all_reduce_device_async(array, ReduceOp::Sum, &lane.stream)?);
    }
    for (request, lane) in in_flight.into_iter().zip(lanes) {
        let array = request.wait(after)?;
        lane.queue_after(array, after)?;
    }
    Ok(())
}

fn one_by_one(comm: &mut Communicator, lanes: &mut [Lane]) -> Result<(), Failure> {
    for lane in lanes {
        let mut array = lane.queue_before()?;
        let stream = Arc::clone(&lane.stream);
        comm.all_reduce_device(&mut array, ReduceOp::Sum, &stream)?;
        lane.queue_after(array, &stream)?;
    }
    Ok(())
}
