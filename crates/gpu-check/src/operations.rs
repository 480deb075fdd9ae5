//! Tests collectives other than all-reduces on arrays and streams that are passed to the library as addresses, as from C and Python.

use cudarc::driver::DevicePtr as _;
use unisono::{Choice, Communicator, DeviceArray, Operation, ReduceOp};

use crate::correct::without_nccl;
use crate::report::{Failure, Figures, Outcome, sum_of_all};
use crate::settings::Settings;

/// No elements, counts that no number of ranks divides, and several segments.
const COUNTS: [usize; 4] = [0, 7, 4099, 1_000_003];

pub(crate) fn check(comm: &mut Communicator, settings: &Settings, route: &str) -> Outcome {
    without_nccl(settings.must_run.as_deref(), route)?;
    let root = comm.ranks() - 1;
    let operations = [
        Operation::AllReduce,
        Operation::Reduce { root },
        Operation::Broadcast { root },
        Operation::ReduceScatter,
        Operation::AllGather,
        Operation::Gather { root },
        Operation::Scatter { root },
        Operation::Scan,
    ];
    let (mut wrong, mut calls, mut by_nccl) = (0, 0, 0);
    for (operation, count) in operations.iter().flat_map(|&one| COUNTS.map(|count| (one, count))) {
        let (differ, ran) = one(comm, operation, count)?;
        (wrong, calls, by_nccl) = (wrong + differ, calls + 1, by_nccl + u64::from(ran == "nccl"));
    }
    let stream = comm.device()?.new_stream()?;
    comm.barrier_device(&stream)?;
    comm.synchronize(&stream)?;
    let wrong = sum_of_all(comm, wrong)?;
    let figures = Figures::of(comm, route).with("calls", calls).with("by_nccl", by_nccl).with("wrong", wrong);
    figures.unless(match wrong {
        0 if settings.must_run.is_some() && by_nccl == 0 => {
            Some("no element was wrong, but nccl was never used".to_owned())
        }
        0 => None,
        _ => Some(format!("{wrong} elements were wrong")),
    })
}

/// Makes one call on the GPU and on the host, and counts the elements of the result that differ.
fn one(comm: &mut Communicator, operation: Operation, count: usize) -> Result<(u64, &'static str), Failure> {
    let stream = comm.device()?.new_stream()?;
    let value = |element: usize| ((element * 7 + comm.rank() * 3) % 61) as f32;
    let mut on_host: Vec<_> = (0..count).map(value).collect();
    let mut memory = comm.alloc_device::<f32>(count)?;
    stream.join(memory.stream())?;
    stream.memcpy_htod(&on_host, &mut memory)?;
    let (address, raw) = (memory.device_ptr(&stream).0, stream.cu_stream().cast());
    // SAFETY: the memory has as many elements, and memory and stream live until `synchronize` has returned.
    let mut array = unsafe { DeviceArray::<f32>::new(address, count, raw)? };
    let (on, op) = (array.on(), operation.reduces().then_some(ReduceOp::Sum));
    let ran = comm.run_device(operation, op, &mut array, &on)?;
    comm.synchronize(&stream)?;
    let found = stream.clone_dtoh(&memory)?;
    stream.synchronize()?;
    comm.set_choice(Choice::Auto)?;
    let own = comm.own_part(count);
    let result = match operation {
        Operation::Reduce { root } | Operation::Gather { root } if comm.rank() != root => 0..0,
        Operation::ReduceScatter | Operation::Scatter { .. } => own,
        _ => 0..count,
    };
    comm.run(operation, op, &mut on_host)?;
    let differ =
        found[result.clone()].iter().zip(&on_host[result]).filter(|(found, expected)| found != expected);
    Ok((differ.count() as u64, ran.method.name()))
}
