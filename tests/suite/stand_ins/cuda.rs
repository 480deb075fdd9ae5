//! The stand-in for the CUDA driver, through cudarc.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, CudaStream, DevicePtr as _, DriverError, result};

use super::{Case, case};

pub(crate) const CASES: &[Case] = &[
    case("cuda: no device", &[("STAND_IN_DEVICES", "0")], no_device),
    case(
        "cuda: devices are distinguished",
        &[("STAND_IN_DEVICES", "3"), ("CUDA_VISIBLE_DEVICES", "2,0,7,1"), ("STAND_IN_MEMORY_MB", "16")],
        devices,
    ),
    case("cuda: copies there and back", &[], copies),
    case("cuda: two streams, seed 0", &[("STAND_IN_SEED", "0")], two_streams),
    case("cuda: two streams, seed 1", &[("STAND_IN_SEED", "1")], two_streams),
    case("cuda: two streams, seed 2", &[("STAND_IN_SEED", "2")], two_streams),
    case("cuda: pinned memory is copied later", &[], pinned),
    case("cuda: a copy takes its time", &[("STAND_IN_GB_PER_S", "0.01")], rate).timed(),
    case("cuda: a stream is a queue", &[], queue),
    case("cuda: an event is the moment of its record", &[], events),
    case("cuda: new and freed memory", &[], memory),
    case("cuda: out of bounds", &[], out_of_bounds),
    case("cuda: freed in the order of the stream", &[], freed_in_order),
    case("cuda: a reset context works", &[], anew),
];

fn code<T>(result: Result<T, DriverError>) -> CUresult {
    result.map_or_else(|error| error.0, |_| CUresult::CUDA_SUCCESS)
}

fn device(ordinal: usize) -> (Arc<CudaContext>, Arc<CudaStream>) {
    let context = CudaContext::new(ordinal).unwrap();
    let stream = context.new_stream().unwrap();
    (context, stream)
}

/// A gate in a stream, which stops there until it is opened.
#[derive(Default)]
struct Gate(AtomicBool);

impl Gate {
    /// Makes all later operations wait. The gate must be opened before it is dropped.
    fn close(&self, stream: &CudaStream) {
        self.0.store(false, Ordering::Release);
        let data = std::ptr::from_ref(self).cast_mut().cast();
        // SAFETY: every test opens its gate, and waits for the stream.
        unsafe { result::stream::launch_host_function(stream.cu_stream(), stand, data) }.unwrap();
    }

    fn open(&self) {
        self.0.store(true, Ordering::Release);
    }
}

unsafe extern "C" fn stand(gate: *mut c_void) {
    // SAFETY: the test that launched it keeps the gate until the stream is done.
    let gate = unsafe { &*gate.cast::<Gate>() };
    while !gate.0.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn no_device() {
    assert_eq!(code(CudaContext::device_count()), CUresult::CUDA_ERROR_NO_DEVICE);
    assert_eq!(code(CudaContext::new(0)), CUresult::CUDA_ERROR_NO_DEVICE);
}

fn devices() {
    assert_eq!(CudaContext::device_count().unwrap(), 2, "the list ends before the missing device");
    let (first, stream) = device(0);
    let (second, _) = device(1);
    assert_eq!(first.uuid().unwrap().bytes[15], 2, "of the physical device");
    assert_eq!(second.uuid().unwrap().bytes[15], 0);
    assert_eq!(first.name().unwrap(), "Stand-in GPU");
    assert_eq!(first.compute_capability().unwrap(), (9, 0));
    assert_eq!(first.total_mem().unwrap(), 16 << 20);
    let held = stream.alloc_zeros::<u8>(1 << 20).unwrap();
    assert_eq!(first.mem_get_info().unwrap(), (15 << 20, 16 << 20));
    assert_eq!(second.mem_get_info().unwrap(), (16 << 20, 16 << 20), "each has its own");
    assert_eq!(code(stream.alloc_zeros::<u8>(16 << 20)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(code(CudaContext::new(2)), CUresult::CUDA_ERROR_INVALID_DEVICE);
    drop(held);
}

fn copies() {
    let (_context, stream) = device(0);
    let values: Vec<f32> = (0..10_000).map(|index| index as f32).collect();
    let mut there = stream.alloc_zeros::<f32>(values.len()).unwrap();
    assert_eq!(stream.clone_dtoh(&there).unwrap(), vec![0.0; values.len()]);
    stream.memcpy_htod(&values, &mut there).unwrap();
    let twice = stream.clone_dtod(&there).unwrap();
    assert_eq!(stream.clone_dtoh(&twice).unwrap(), values);
    let part = stream.clone_dtoh(&there.slice(100..200)).unwrap();
    assert_eq!(part, values[100..200]);
    stream.memset_zeros(&mut there).unwrap();
    assert_eq!(stream.clone_dtoh(&there).unwrap(), vec![0.0; values.len()]);
    assert_eq!(stream.clone_dtoh(&twice).unwrap(), values);
}

/// Copies on one stream what another stream writes, so often that both orders occur.
fn two_streams() {
    const ROUNDS: usize = 300;
    let (context, writer) = device(0);
    let reader = context.new_stream().unwrap();
    // SAFETY: the tracking of cudarc is replaced by this test's own events. Nothing is freed before the end.
    unsafe { context.disable_event_tracking() };
    let old_seen = |is_ordered: bool| {
        (0..ROUNDS)
            .filter(|_| {
                let mut from = writer.alloc_zeros::<u32>(64).unwrap();
                let mut to = reader.alloc_zeros::<u32>(64).unwrap();
                context.synchronize().unwrap();
                writer.memcpy_htod(&[7; 64], &mut from).unwrap();
                if is_ordered {
                    reader.wait(&writer.record_event(None).unwrap()).unwrap();
                }
                reader.memcpy_dtod(&from, &mut to).unwrap();
                context.synchronize().unwrap();
                let read = reader.clone_dtoh(&to).unwrap();
                reader.synchronize().unwrap();
                // Without the event the copy may also run while the other stream writes.
                assert!(read.iter().all(|value| [0, 7].contains(value)), "{read:?}");
                read != [7; 64]
            })
            .count()
    };
    assert_eq!(old_seen(true), 0, "an event orders the streams");
    let old = old_seen(false);
    assert!(old > ROUNDS / 20, "{old} of {ROUNDS} without an event saw old data");
    assert!(old < ROUNDS, "none of {ROUNDS} without an event was in time: the delays are not random");
}

fn pinned() {
    let (context, stream) = device(0);
    let mut there = stream.alloc_zeros::<u8>(16).unwrap();
    // SAFETY: the memory is written before it is read.
    let mut host = unsafe { context.alloc_pinned::<u8>(16).unwrap() };
    let bytes = host.as_mut_ptr().unwrap();
    let address = there.device_ptr(&stream).0;
    let gate = Gate::default();

    gate.close(&stream);
    // SAFETY: both sides have sixteen bytes. Their changes during the copy are under test.
    unsafe {
        bytes.write_bytes(1, 16);
        let source = std::slice::from_raw_parts(bytes, 16);
        result::memcpy_htod_async(address, source, stream.cu_stream()).unwrap();
        bytes.write_bytes(2, 16);
    }
    gate.open();
    stream.synchronize().unwrap();
    assert_eq!(
        stream.clone_dtoh(&there).unwrap(),
        [2; 16],
        "pinned memory is read when the copy is executed"
    );

    let mut pageable = vec![3_u8; 16];
    gate.close(&stream);
    stream.memcpy_htod(&pageable, &mut there).unwrap();
    pageable.fill(4);
    gate.open();
    assert_eq!(
        stream.clone_dtoh(&there).unwrap(),
        [3; 16],
        "pageable memory is read when the copy is requested"
    );

    gate.close(&stream);
    // SAFETY: as above.
    unsafe {
        let target = std::slice::from_raw_parts_mut(bytes, 16);
        result::memcpy_dtoh_async(target, address, stream.cu_stream()).unwrap();
        assert_eq!(bytes.read_volatile(), 2, "pinned memory is written later");
        gate.open();
        stream.synchronize().unwrap();
        assert_eq!(bytes.read_volatile(), 3);
    }
}

fn rate() {
    let (_context, stream) = device(0);
    let started = Instant::now();
    // 300 ms in each direction.
    let there = stream.clone_htod(&vec![1_u8; 3_000_000]).unwrap();
    let called = started.elapsed();
    stream.clone_dtoh(&there).unwrap();
    stream.synchronize().unwrap();
    assert!(called.as_millis() < 250, "the host runs ahead: {called:?}");
    assert!(started.elapsed().as_millis() >= 600, "{:?}", started.elapsed());
}

/// The argument of a host function: a counter, and its expected value.
struct Turn<'a>(&'a AtomicU32, u32);

unsafe extern "C" fn take_turn(turn: *mut c_void) {
    // SAFETY: the test that launched it keeps the argument until the stream is done.
    let turn = unsafe { &*turn.cast::<Turn<'_>>() };
    let _ = turn.0.compare_exchange(turn.1, turn.1 + 1, Ordering::AcqRel, Ordering::Acquire);
}

fn queue() {
    let (context, stream) = device(0);
    let (counter, gate) = (AtomicU32::new(0), Gate::default());
    gate.close(&stream);
    let mut turns: Vec<_> = (0..100).map(|number| Turn(&counter, number)).collect();
    for turn in &mut turns {
        // SAFETY: the stream is done before the turns are gone.
        unsafe {
            let data = std::ptr::from_mut(turn).cast();
            result::stream::launch_host_function(stream.cu_stream(), take_turn, data).unwrap();
        }
    }
    // SAFETY: the handle is valid.
    let query = || unsafe { cudarc::driver::sys::cuStreamQuery(stream.cu_stream()) };
    assert_eq!(query(), CUresult::CUDA_ERROR_NOT_READY);
    gate.open();
    context.synchronize().unwrap();
    assert_eq!(query(), CUresult::CUDA_SUCCESS);
    assert_eq!(counter.load(Ordering::Acquire), 100, "in order, each once");
}

fn events() {
    let (context, stream) = device(0);
    let other = context.new_stream().unwrap();
    let start = context.new_event(None).unwrap();
    assert!(start.is_complete(), "never recorded");
    other.wait(&start).unwrap();
    other.synchronize().unwrap();

    let gate = Gate::default();
    gate.close(&stream);
    start.record(&stream).unwrap();
    assert!(!start.is_complete(), "recorded but not reached");
    gate.open();
    start.synchronize().unwrap();
    assert!(start.is_complete(), "reached");

    // A wait refers to the record at the time of the call.
    let again = context.new_event(None).unwrap();
    again.record(&other).unwrap();
    stream.wait(&again).unwrap();
    gate.close(&other);
    again.record(&other).unwrap();
    stream.synchronize().unwrap();
    assert!(!again.is_complete());
    gate.open();
    again.synchronize().unwrap();
    assert!(again.is_complete());
}

fn memory() {
    let (context, stream) = device(0);
    // SAFETY: reading new memory is under test; any bits are a `u8`.
    let new = unsafe { stream.alloc::<u8>(64).unwrap() };
    assert_eq!(stream.clone_dtoh(&new).unwrap(), [0xa5; 64]);
    let address = new.device_ptr(&stream).0;
    assert_ne!(address & 1 << 62, 0, "no address of the host's");
    drop(new);
    context.synchronize().unwrap();
    let mut bytes = [0_u8; 64];
    // SAFETY: sixty-four bytes; the stand-in detects that they were freed.
    let read = unsafe { result::memcpy_dtoh_async(&mut bytes, address, stream.cu_stream()) };
    assert_eq!(code(read), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
}

fn out_of_bounds() {
    let (context, stream) = device(0);
    let there = stream.alloc_zeros::<u8>(64).unwrap();
    let address = there.device_ptr(&stream).0;
    // SAFETY: the stand-in detects that it is one byte too many.
    unsafe { result::memset_d8_async(address + 1, 0, 64, stream.cu_stream()) }.unwrap();
    assert_eq!(code(stream.synchronize()), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(code(context.synchronize()), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, "it sticks");
    let other = code(context.new_stream());
    assert_eq!(other, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    let error = DriverError(other);
    let name = error.error_name().unwrap().to_str().unwrap();
    assert_eq!(name, "CUDA_ERROR_ILLEGAL_ADDRESS");
}

fn freed_in_order() {
    let (context, stream) = device(0);
    for round in 0..100 {
        let from = stream.clone_htod(&[round; 32]).unwrap();
        let to = stream.clone_dtod(&from).unwrap();
        // Called long before the copy is executed, but ordered after it in the stream.
        drop(from);
        assert_eq!(stream.clone_dtoh(&to).unwrap(), [round; 32]);
    }
    context.synchronize().unwrap();
    let (free, total) = context.mem_get_info().unwrap();
    assert_eq!(free, total, "all memory is free again");
    // SAFETY: the stand-in detects that there is no allocation at this address.
    let nothing = unsafe { result::free_sync(1 << 62) };
    assert_eq!(code(nothing), CUresult::CUDA_ERROR_INVALID_VALUE);
}

fn anew() {
    {
        let (_context, stream) = device(0);
        // SAFETY: the stand-in detects that there is no allocation at this address.
        unsafe { result::memset_d8_async(1 << 62, 0, 1, stream.cu_stream()) }.unwrap();
        assert_eq!(code(stream.synchronize()), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    let (_context, stream) = device(0);
    assert_eq!(stream.clone_dtoh(&stream.clone_htod(&[1, 2]).unwrap()).unwrap(), [1, 2]);
}
