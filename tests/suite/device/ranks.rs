//! The program of one rank.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DeviceRepr, ValidAsZeroBits};
use unisono::{Algorithm, Call, Choice, Communicator, DType, Error, Method, ReduceOp, Vendor};

use super::operations;
use crate::common::{Exact, WITH_ALL_REDUCTIONS, assert_reduced, bits, inputs, reductions_of_counts};
use crate::for_every_dtype;

/// Several segments, and no multiple of their size.
const LARGE: usize = 300_007;

pub(crate) fn play(role: &str, comm: &mut Communicator) {
    match role {
        "reduce" => reduce(comm),
        "by nccl" => ran(comm, &["nccl"], "NCCL"),
        "in nodes" => ran(comm, &["hierarchical-copy+nccl", "rail+nccl"], "NCCL"),
        "through the host" => through_the_host(comm, "share a GPU"),
        "refused by nccl" => through_the_host(comm, "NCCL refused on rank 1: "),
        "alone" => ran(comm, &[], "no node has two ranks"),
        "bits" => same_bits_as_slices(comm),
        "in flight" => in_flight(comm),
        "in flight, untracked" => {
            // SAFETY: the calls under test order all work that cudarc's events would order.
            unsafe { comm.device().unwrap().disable_event_tracking() };
            in_flight(comm);
        }
        "segments" => segments(comm),
        "another GPU" => another_gpu(comm),
        "many segments" => many_segments(comm),
        "operations" => operations::conform(comm),
        "count" => another_count(comm),
        "order" => another_order(comm),
        "late" => late(comm),
        _ => panic!("no such role: {role}"),
    }
    // A rank that leaves ends the calls of others.
    if !matches!(role, "count" | "order" | "late") {
        comm.barrier().unwrap();
    }
}

pub(crate) fn threads() {
    unisono::threads(4, |mut comm| {
        reduce(&mut comm);
        in_flight(&mut comm);
    });
}

/// Returns an array on this rank's GPU, and the stream on which it was copied.
pub(crate) fn array<T>(comm: &Communicator, elements: &[T]) -> (CudaSlice<T>, Arc<CudaStream>)
where
    T: Exact + DeviceRepr + ValidAsZeroBits,
{
    let stream = comm.device().unwrap().new_stream().unwrap();
    let mut array = comm.alloc_device::<T>(elements.len()).unwrap();
    stream.join(array.stream()).unwrap();
    stream.memcpy_htod(elements, &mut array).unwrap();
    (array, stream)
}

/// Tests every method of this world, with every type, every reduction and many counts.
fn reduce(comm: &mut Communicator) {
    for_every_dtype!(reduce_all(comm));
}

fn reduce_all<T: Exact + DeviceRepr + ValidAsZeroBits>(comm: &mut Communicator) {
    let vendors = [Algorithm::HierarchicalCopy, Algorithm::Rail]
        .map(|algorithm| Choice::from(Method::InNodes(algorithm, Vendor::Nccl)));
    let algorithms = [Algorithm::Ring, Algorithm::Butterfly, Algorithm::HierarchicalCopy].map(Choice::from);
    let others = [Choice::Auto, Choice::from(Vendor::Nccl)];
    let mut by_nccl = 0;
    for choice in vendors.into_iter().chain(algorithms).chain(others) {
        comm.set_choice(choice.clone()).unwrap();
        let counts = [0, 1, comm.ranks() + 1, WITH_ALL_REDUCTIONS];
        for (op, count) in reductions_of_counts(T::DTYPE, &counts) {
            let is_done = reduce_one::<T>(comm, &choice, op, count);
            by_nccl += usize::from(is_done && choice.to_string().contains("nccl"));
        }
    }
    let route = comm.device_route().unwrap();
    assert!(by_nccl > 0 || !route.starts_with("NCCL"), "NCCL reduces no {}: {route}", T::DTYPE);
}

/// Returns whether the method is available.
fn reduce_one<T>(comm: &mut Communicator, choice: &Choice, op: ReduceOp, count: usize) -> bool
where
    T: Exact + DeviceRepr + ValidAsZeroBits,
{
    let (mut array, stream) = array(comm, &inputs::<T>(op, comm.rank(), 0, count));
    match comm.all_reduce_device(&mut array, op, &stream) {
        Ok(ran) => {
            let reduced = stream.clone_dtoh(&array).unwrap();
            comm.synchronize(&stream).unwrap();
            let what = format!("{choice} ({}), rank {}, {count} elements", ran.method.name(), comm.rank());
            assert_reduced(&reduced, op, comm.ranks(), 0, &what);
            true
        }
        // A method requested by name may be unavailable; `auto` always works.
        Err(Error::Unsupported(_)) => {
            assert!(choice.vendor().is_some(), "{choice}, {op} of {}", T::DTYPE);
            false
        }
        Err(error) => panic!("{choice}, {op} of {}: {error}", T::DTYPE),
    }
}

/// Checks the choices of `auto` for a small and a large array, and the description of the route.
fn ran(comm: &mut Communicator, expected: &[&str], route: &str) {
    let description = comm.device_route().unwrap();
    assert!(description.contains(route), "{description}");
    for (size, place) in [(8, 0), (LARGE, expected.len().saturating_sub(1))] {
        let (mut array, stream) = array(comm, &inputs::<f32>(ReduceOp::Mean, comm.rank(), 0, size));
        let ran = comm.all_reduce_device(&mut array, ReduceOp::Mean, &stream).unwrap();
        assert!(
            expected.is_empty() || ran.method.name() == expected[place],
            "{size} elements: {}",
            ran.method.name()
        );
        let reduced = stream.clone_dtoh(&array).unwrap();
        comm.synchronize(&stream).unwrap();
        assert_reduced(&reduced, ReduceOp::Mean, comm.ranks(), 0, ran.method.name());
    }
}

/// Checks that the methods are those for arrays in host memory, for this reason.
fn through_the_host(comm: &mut Communicator, why: &str) {
    let call = |count| Call::all_reduce(DType::F32, ReduceOp::Mean, count);
    let on_host = [8, LARGE].map(|count| comm.selection(&call(count)).method.name());
    ran(comm, &on_host, why);
    refuses(comm);
}

/// Checks that a method requested by name is never replaced silently, and that the communicator remains usable.
fn refuses(comm: &mut Communicator) {
    for choice in [Choice::from(Vendor::Nccl), Choice::from(Vendor::Mpi)] {
        comm.set_choice(choice).unwrap();
        let (mut array, stream) = array(comm, &[1.0_f32; 10]);
        let refused = comm.all_reduce_device(&mut array, ReduceOp::Sum, &stream);
        assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
    }
    comm.set_choice(Choice::Auto).unwrap();
    comm.barrier().unwrap();
}

/// Checks that an array on another GPU is refused, and that earlier arrays still work.
fn another_gpu(comm: &mut Communicator) {
    reduce_one::<f32>(comm, &Choice::Auto, ReduceOp::Sum, 10);
    let elsewhere = CudaContext::new(comm.rank() + 2).unwrap().new_stream().unwrap();
    let mut array = elsewhere.clone_htod(&[1.0_f32; 10]).unwrap();
    let refused = comm.all_reduce_device(&mut array, ReduceOp::Sum, &elsewhere).unwrap_err().to_string();
    assert!(refused.contains(&format!("on GPU {}", comm.rank() + 2)), "{refused}");
    reduce_one::<f32>(comm, &Choice::Auto, ReduceOp::Sum, 10);
}

/// Checks that, through the host, results on a GPU equal those in host memory bit by bit, for any segmentation.
fn same_bits_as_slices(comm: &mut Communicator) {
    for algorithm in Algorithm::ALL {
        comm.set_choice(algorithm).unwrap();
        for count in [1000, LARGE] {
            let noise = bits::inputs(comm.rank(), count, |noise| noise as f32);
            let (mut array, stream) = array(comm, &noise);
            comm.all_reduce_device(&mut array, ReduceOp::Sum, &stream).unwrap();
            let on_gpu = stream.clone_dtoh(&array).unwrap();
            comm.synchronize(&stream).unwrap();
            let mut on_host = noise;
            comm.all_reduce(&mut on_host, ReduceOp::Sum).unwrap();
            let differs =
                on_gpu.iter().zip(&on_host).position(|(one, other)| one.to_bits() != other.to_bits());
            assert_eq!(differs, None, "{algorithm}, {count} elements");
        }
    }
}

/// Arrays of many segments, one after the other on the same stream, without waiting on the host: slots are reused while
/// their last segment is in flight.
fn segments(comm: &mut Communicator) {
    for choice in [Choice::Auto, Choice::from(Algorithm::HierarchicalCopy), Choice::from(Algorithm::Ring)] {
        comm.set_choice(choice.clone()).unwrap();
        let (mut array, stream) = array(comm, &inputs::<f32>(ReduceOp::Max, comm.rank(), 0, LARGE));
        for _ in 0..4 {
            comm.all_reduce_device(&mut array, ReduceOp::Max, &stream).unwrap();
        }
        let reduced = stream.clone_dtoh(&array).unwrap();
        comm.synchronize(&stream).unwrap();
        assert_reduced(&reduced, ReduceOp::Max, comm.ranks(), 0, &choice.to_string());
    }
}

/// More segments than slots, and streams that are sometimes much slower than the others: a slot's last segment is still
/// being copied up when the next one is to be copied down.
fn many_segments(comm: &mut Communicator) {
    for choice in [Choice::Auto, Choice::from(Algorithm::RoundRobin)] {
        comm.set_choice(choice.clone()).unwrap();
        let (mut array, stream) = array(comm, &inputs::<u8>(ReduceOp::Sum, comm.rank(), 0, 33 << 20));
        comm.all_reduce_device(&mut array, ReduceOp::Sum, &stream).unwrap();
        let reduced = stream.clone_dtoh(&array).unwrap();
        comm.synchronize(&stream).unwrap();
        assert_reduced(&reduced, ReduceOp::Sum, comm.ranks(), 0, &choice.to_string());
    }
}

/// Tests several calls at once, each ordered with the work before and after it on its own stream.
fn in_flight(comm: &mut Communicator) {
    for round in 0..5 {
        let begun: Vec<_> = (0..4)
            .map(|number| {
                let count = [7, 1009, LARGE, 1][number];
                let (array, stream) = array(comm, &inputs::<f32>(ReduceOp::Sum, comm.rank(), number, count));
                (comm.all_reduce_device_async(array, ReduceOp::Sum, &stream).unwrap(), number)
            })
            .collect();
        for (request, number) in begun {
            let other = comm.device().unwrap().new_stream().unwrap();
            let array = request.wait(&other).unwrap();
            let reduced = other.clone_dtoh(&array).unwrap();
            comm.synchronize(&other).unwrap();
            assert_reduced(
                &reduced,
                ReduceOp::Sum,
                comm.ranks(),
                number,
                &format!("round {round}, array {number}"),
            );
        }
    }
    // A dropped request still runs, and keeps its memory until then.
    let (array, stream) = array(comm, &vec![1.0_f32; LARGE]);
    drop(comm.all_reduce_device_async(array, ReduceOp::Sum, &stream).unwrap());
    reduce_one::<f32>(comm, &Choice::Auto, ReduceOp::Sum, 10);
}

/// Checks that no rank gets a result, by any method.
fn another_count(comm: &mut Communicator) {
    comm.set_timeout(Duration::from_secs(30));
    let (mut array, stream) = array(comm, &vec![1.0_f32; 1000 - usize::from(comm.rank() == 1)]);
    let called = comm.all_reduce_device(&mut array, ReduceOp::Sum, &stream);
    let then = comm.barrier();
    println!("rank {} got a result: {}", comm.rank(), called.is_ok() && then.is_ok());
}

/// Makes the same kinds of call, in another order on one rank.
fn another_order(comm: &mut Communicator) {
    comm.set_timeout(Duration::from_secs(30));
    let counts = [1000, 999];
    let make = |comm: &mut Communicator, count: usize| {
        let (mut array, stream) = array(comm, &vec![1.0_f32; count]);
        comm.all_reduce_device(&mut array, ReduceOp::Sum, &stream)?;
        comm.synchronize(&stream)
    };
    counts.into_iter().try_for_each(|count| make(comm, count)).unwrap();
    let in_turn = if comm.rank() == 1 { [999, 1000] } else { counts };
    let called = in_turn.into_iter().try_for_each(|count| make(comm, count));
    let then = comm.barrier();
    println!("rank {} got a result: {}", comm.rank(), called.is_ok() && then.is_ok());
}

/// One rank does not arrive.
fn late(comm: &mut Communicator) {
    comm.device_route().unwrap();
    comm.set_timeout(Duration::from_secs(1));
    if comm.rank() == 0 {
        std::thread::sleep(Duration::from_secs(5));
    }
    let (mut array, stream) = array(comm, &[1.0_f32; 10]);
    let error = comm.all_reduce_device(&mut array, ReduceOp::Sum, &stream).unwrap_err();
    assert!(error.is_fatal() && comm.barrier().is_err_and(|later| later.is_fatal()));
    panic!("{error}");
}
