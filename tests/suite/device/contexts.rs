//! Streams and contexts of the program, and the end of communicators, with ranks as threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaContext, CudaStream, DevicePtrMut, DeviceSlice, SyncOnDrop, result};
use unisono::{Communicator, DeviceArray, Error, ReduceOp, Result};

pub(crate) fn all() {
    per_thread_stream_is_ordered();
    array_is_freed_after_its_last_call();
    empty_array_is_on_the_gpu_of_its_stream();
    freeing_a_communicator_keeps_the_current_context();
    another_context_of_the_gpu_is_refused();
    caught_panic_loses_the_communicator();
}

/// Runs where NCCL waits for a missing rank for longer than the test.
pub(crate) fn late() {
    dropped_communicator_completes_its_calls();
    calls_in_opposite_orders_end();
}

/// Sums two ones, and waits for the end.
fn sum(comm: &mut Communicator, stream: &Arc<CudaStream>) -> Result<()> {
    let mut array = stream.clone_htod(&[1.0_f32; 8]).unwrap();
    comm.all_reduce_device(&mut array, ReduceOp::Sum, stream)?;
    comm.synchronize(stream)?;
    assert_eq!(stream.clone_dtoh(&array).unwrap(), [2.0; 8]);
    Ok(())
}

fn per_thread_stream_is_ordered() {
    unisono::threads(2, |mut comm| {
        let stream = comm.device().unwrap().per_thread_stream();
        for round in 0..30_u8 {
            let values = vec![f32::from(round); 1009];
            let mut array = stream.clone_htod(&values).unwrap();
            let ran = comm.all_reduce_device(&mut array, ReduceOp::Sum, &stream).unwrap();
            let sums = stream.clone_dtoh(&array).unwrap();
            comm.barrier_device(&stream).unwrap();
            comm.synchronize(&stream).unwrap();
            assert_eq!(sums, vec![2.0 * f32::from(round); 1009], "round {round} by {ran}");
        }
    });
}

/// The stream belongs to another cudarc object of the same context as the array.
fn array_is_freed_after_its_last_call() {
    let is_freed = Barrier::new(2);
    unisono::threads(2, |mut comm| {
        let stream = CudaContext::new(comm.rank()).unwrap().new_stream().unwrap();
        let mut arrays = [(); 2].map(|()| comm.alloc_device::<f32>(8).unwrap());
        // The second call is of a known kind, so it returns before the other rank makes it.
        comm.all_reduce_device(&mut arrays[0], ReduceOp::Sum, &stream).unwrap();
        comm.synchronize(&stream).unwrap();
        if comm.rank() == 1 {
            is_freed.wait();
        }
        comm.all_reduce_device(&mut arrays[1], ReduceOp::Sum, &stream).unwrap();
        drop(arrays);
        if comm.rank() == 0 {
            std::thread::sleep(Duration::from_millis(200));
            is_freed.wait();
        }
        comm.synchronize(&stream).unwrap();
    });
}

fn empty_array_is_on_the_gpu_of_its_stream() {
    let (first, last) = (CudaContext::new(0).unwrap(), CudaContext::new(3).unwrap());
    let stream = last.new_stream().unwrap();
    first.bind_to_thread().unwrap();
    // SAFETY: the array has no elements, and the stream lives longer.
    let nothing = unsafe { DeviceArray::<f32>::new(0, 0, stream.cu_stream().cast()) }.unwrap();
    assert_eq!(nothing.on().context().ordinal(), 3);
    drop(nothing);
    assert_eq!(result::ctx::get_current().unwrap(), Some(first.cu_ctx()));
}

fn freeing_a_communicator_keeps_the_current_context() {
    unisono::threads(2, |mut comm| {
        comm.device_route().unwrap();
        let elsewhere = CudaContext::new(comm.rank() + 2).unwrap();
        elsewhere.bind_to_thread().unwrap();
        drop(comm);
        assert_eq!(result::ctx::get_current().unwrap(), Some(elsewhere.cu_ctx()));
    });
}

fn another_context_of_the_gpu_is_refused() {
    unisono::threads(2, |mut comm| {
        let own = comm.device().unwrap();
        let stream = own.new_stream().unwrap();
        sum(&mut comm, &stream).unwrap();
        let another = CudaContext::new(comm.rank() + 2).unwrap();
        let (ordinal, device) = (own.ordinal(), own.cu_device());
        // SAFETY: the primary context of another GPU, in place of a second one of this GPU. It is never destroyed.
        let context = unsafe { CudaContext::from_raw_context(ordinal, device, another.cu_ctx()) };
        let context = std::mem::ManuallyDrop::new(context.unwrap());
        let refused = sum(&mut comm, &context.new_stream().unwrap()).unwrap_err();
        assert!(matches!(refused, Error::Unsupported(_)), "{refused}");
        sum(&mut comm, &stream).unwrap();
    });
}

/// An array whose code panics in a call.
struct Panics(Arc<CudaStream>);

impl DeviceSlice<f32> for Panics {
    fn len(&self) -> usize {
        8
    }

    fn stream(&self) -> &Arc<CudaStream> {
        &self.0
    }
}

impl DevicePtrMut<f32> for Panics {
    fn device_ptr_mut<'a>(&'a mut self, _: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        panic!("an array that panics");
    }
}

fn caught_panic_loses_the_communicator() {
    unisono::threads(2, |mut comm| {
        let stream = comm.device().unwrap().new_stream().unwrap();
        sum(&mut comm, &stream).unwrap();
        if comm.rank() == 0 {
            let mut array = Panics(Arc::clone(&stream));
            let call = || comm.all_reduce_device(&mut array, ReduceOp::Sum, &stream).is_ok();
            catch_unwind(AssertUnwindSafe(call)).unwrap_err();
        }
        let error = sum(&mut comm, &stream).unwrap_err();
        let is_expected =
            if comm.rank() == 0 { matches!(error, Error::Aborted { .. }) } else { error.is_fatal() };
        assert!(is_expected, "rank {}: {error}", comm.rank());
    });
}

/// Rank 1 makes its call more than five seconds after rank 0 has dropped its communicator.
fn dropped_communicator_completes_its_calls() {
    let sums = unisono::threads(2, |mut comm| {
        let stream = comm.device().unwrap().new_stream().unwrap();
        sum(&mut comm, &stream).unwrap();
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_secs(7));
        }
        let mut array = stream.clone_htod(&[1.0_f32; 8]).unwrap();
        comm.all_reduce_device(&mut array, ReduceOp::Sum, &stream).unwrap();
        drop(comm);
        stream.clone_dtoh(&array).unwrap()
    });
    assert_eq!(sums, [[2.0; 8]; 2]);
}

/// On one stream, the ranks make calls of two communicators in opposite orders.
fn calls_in_opposite_orders_end() {
    unisono::threads(2, |mut one| {
        let mut other = one.split(Some(0), 0).unwrap().unwrap();
        let stream = one.device().unwrap().new_stream().unwrap();
        let mut array = stream.clone_htod(&[1.0_f32; 8]).unwrap();
        for comm in [&mut one, &mut other] {
            sum(comm, &stream).unwrap();
            comm.set_timeout(Duration::from_secs(5));
        }
        let [first, last] = if one.rank() == 0 { [&mut one, &mut other] } else { [&mut other, &mut one] };
        for comm in [first, &mut *last] {
            comm.all_reduce_device(&mut array, ReduceOp::Sum, &stream).unwrap();
        }
        last.synchronize(&stream).unwrap_err();
    });
}
