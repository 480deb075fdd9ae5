//! Tests collectives other than all-reduces on arrays and streams that are passed to the library as addresses, as from C and Python.

use cudarc::driver::DevicePtr as _;
use unisono::{Choice, Communicator, DeviceArray, Operation, ReduceOp};

use crate::correct::without_nccl;
use crate::report::{Failure, Figures, Outcome};
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
    let mut of_all = [wrong];
    comm.all_reduce(&mut of_all, ReduceOp::Sum)?;
    let figures = Figures::default().with("ranks", comm.ranks()).with("route", route);
    let figures = figures.with("calls", calls).with("by_nccl", by_nccl).with("wrong", of_all[0]);
    if of_all[0] > 0 {
        return Err(Failure::Missed(format!("{} elements were wrong", of_all[0]), figures));
    }
    if settings.must_run.is_some() && by_nccl == 0 {
        return Err(Failure::Missed("no element was wrong, but nccl was never used".to_owned(), figures));
    }
    Ok(figures)
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
    let root = comm.ranks() - 1;
    let is_root = comm.rank() == root;
    let result = match operation {
        Operation::Reduce { .. } | Operation::Gather { .. } if !is_root => 0..0,
        Operation::ReduceScatter | Operation::Scatter { .. } => own,
        _ => 0..count,
    };
    match operation {
        Operation::AllReduce => drop(comm.all_reduce(&mut on_host, ReduceOp::Sum)?),
        Operation::Reduce { root } => drop(comm.reduce(&mut on_host, ReduceOp::Sum, root)?),
        Operation::Broadcast { root } => drop(comm.broadcast(&mut on_host, root)?),
        Operation::ReduceScatter => drop(comm.reduce_scatter(&mut on_host, ReduceOp::Sum)?),
        Operation::AllGather => drop(comm.all_gather(&mut on_host)?),
        Operation::Gather { root } => drop(comm.gather(&mut on_host, root)?),
        Operation::Scatter { root } => drop(comm.scatter(&mut on_host, root)?),
        _ => drop(comm.scan(&mut on_host, ReduceOp::Sum)?),
    }
    let differ =
        found[result.clone()].iter().zip(&on_host[result]).filter(|(found, expected)| found != expected);
    Ok((differ.count() as u64, ran.method.name()))
}
