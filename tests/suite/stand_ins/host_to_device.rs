//! Copies to a GPU ahead of the work that reads them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, result};
use unisono::{Communicator, Error, ErrorCode, HostToDevice, Unisono};

use super::{Case, case};

/// 3 MB take 500 ms.
const SLOW: (&str, &str) = ("STAND_IN_GB_PER_S", "0.006");
const SLOW_BYTES: usize = 3_000_000;
const SLOW_COPY: Duration = Duration::from_millis(500);

pub(crate) const CASES: &[Case] = &[
    case("host to device: copied values are right, seed 0", &[("STAND_IN_SEED", "0")], || right(true)),
    case("host to device: copied values are right, seed 1", &[("STAND_IN_SEED", "1")], || right(true)),
    case("host to device: copied values are right, seed 2", &[("STAND_IN_SEED", "2")], || right(true)),
    case("host to device: copied values are right, untracked", &[], || right(false)),
    case("host to device: values read at once are right, untracked", &[SLOW], at_once),
    case("host to device: values read on a third stream are right", &[SLOW], elsewhere),
    case("host to device: the ring is bounded", &[SLOW], bounded).timed(),
    case("host to device: work overlaps with a copy", &[SLOW], beside).timed(),
    case("host to device: a copy that does not end", &[SLOW], overdue),
    case("host to device: an error names the GPU", &[("STAND_IN_DEVICES", "2")], error),
    case("host to device: copies end before their memory is freed", &[SLOW], dropped),
    case("host to device: freed memory is kept", &[], kept),
];

/// Returns a GPU, the stream of its work, and copies for it.
fn copies(gpu: usize, buffers: usize) -> (Arc<CudaContext>, Arc<CudaStream>, HostToDevice) {
    let context = CudaContext::new(gpu).unwrap();
    let stream = context.new_stream().unwrap();
    let copies = alone().host_to_device(&stream, buffers).unwrap();
    (context, stream, copies)
}

fn alone() -> Communicator {
    Unisono::builder().threads(1).unwrap().remove(0)
}

/// Returns the values of an array, of a size that varies; some are empty.
fn values(round: usize) -> Vec<u32> {
    (0..(round * 7919) % 5000).map(|place| (round * 10_000 + place) as u32).collect()
}

/// Tests many arrays in flight, from one host array that is reused at once. They are read on the stream and freed.
fn right(is_tracked: bool) {
    let (context, stream, mut copies) = copies(0, 3);
    if !is_tracked {
        // SAFETY: the copies under test order the streams; everything else is on one.
        unsafe { context.disable_event_tracking() };
    }
    let mut on_host = Vec::new();
    let read: Vec<CudaSlice<u32>> = (0..300)
        .map(|round| {
            on_host.clear();
            on_host.extend(values(round));
            let array = copies.copy(&on_host).unwrap();
            on_host.fill(u32::MAX);
            let mut read = stream.alloc_zeros(array.len().max(1)).unwrap();
            if !on_host.is_empty() {
                stream.memcpy_dtod(&array, &mut read).unwrap();
            }
            read
        })
        .collect();
    drop(copies);
    for (round, read) in read.iter().enumerate() {
        let expected = values(round);
        assert_eq!(stream.clone_dtoh(read).unwrap()[..expected.len()], expected, "round {round}");
    }
    drop(read);
    context.synchronize().unwrap();
    let (free, total) = context.mem_get_info().unwrap();
    assert_eq!(free, total, "all memory is free again");
}

/// Reads on a stream without other work, while the copy is in flight.
fn at_once() {
    let (context, stream, mut copies) = copies(0, 2);
    // SAFETY: as in `right`.
    unsafe { context.disable_event_tracking() };
    for round in 1..50 {
        let array = copies.copy(&values(round)).unwrap();
        assert_eq!(stream.clone_dtoh(&array).unwrap(), values(round), "round {round}");
    }
}

/// Reads on a third stream, which only cudarc's tracking orders.
fn elsewhere() {
    let (context, _stream, mut copies) = copies(0, 2);
    let other = context.new_stream().unwrap();
    for round in 1..50 {
        let array = copies.copy(&values(round)).unwrap();
        assert_eq!(other.clone_dtoh(&array).unwrap(), values(round), "round {round}");
    }
}

fn bounded() {
    let (_context, stream, mut copies) = copies(0, 2);
    let (began, bytes) = (Instant::now(), vec![7_u8; SLOW_BYTES]);
    let mut arrays: Vec<_> = (0..2).map(|_| copies.copy(&bytes).unwrap()).collect();
    let queued = began.elapsed();
    assert!(queued < SLOW_COPY * 4 / 5, "two buffers are free: {queued:?}");
    arrays.push(copies.copy(&bytes).unwrap());
    let waited = began.elapsed();
    assert!(waited > SLOW_COPY, "the third copy waits for the first: {waited:?}");
    assert!(waited < SLOW_COPY * 9 / 5, "and not behind the second: {waited:?}");
    for array in &arrays {
        assert_eq!(stream.clone_dtoh(array).unwrap(), bytes);
    }
}

fn beside() {
    let (_context, stream, mut copies) = copies(0, 1);
    let bytes = vec![7_u8; SLOW_BYTES];
    let began = Instant::now();
    let array = copies.copy(&bytes).unwrap();
    let mut work = stream.alloc_zeros::<u8>(100).unwrap();
    stream.memset_zeros(&mut work).unwrap();
    stream.synchronize().unwrap();
    let worked = began.elapsed();
    assert!(worked < SLOW_COPY * 4 / 5, "other work does not wait for the copy: {worked:?}");
    assert_eq!(stream.clone_dtoh(&array).unwrap(), bytes, "work that reads the array waits for the copy");
}

fn overdue() {
    let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
    let mut comm = alone();
    comm.set_timeout(Duration::from_millis(50));
    let mut copies = comm.host_to_device(&stream, 1).unwrap();
    let bytes = vec![7_u8; SLOW_BYTES];
    let array = copies.copy(&bytes).unwrap();
    let error = copies.copy(&bytes).unwrap_err();
    assert!(matches!(error, Error::Overdue { rank: 0, what: "a copy to the GPU", .. }), "{error}");
    // The copy completes later.
    assert_eq!(stream.clone_dtoh(&array).unwrap(), bytes);
    assert_eq!(stream.clone_dtoh(&copies.copy(&[3_u8]).unwrap()).unwrap(), [3]);
}

fn error() {
    let (_context, stream, mut copies) = copies(1, 2);
    let _in_flight = copies.copy(&[1.0_f32; 100]).unwrap();
    // SAFETY: the stand-in detects that there is no allocation at this address.
    unsafe { result::memset_d8_async(1 << 62, 0, 1, stream.cu_stream()) }.unwrap();
    assert_eq!(stream.synchronize().unwrap_err().0, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    let error = copies.copy(&[1.0_f32]).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Cuda);
    let text = error.to_string();
    assert!(text.starts_with("rank 0: GPU 1 failed when an array was copied to it, or before: "), "{text}");
    assert!(text.contains("ILLEGAL_ADDRESS"), "{text}");
    let began = Instant::now();
    drop(copies);
    assert!(began.elapsed() < Duration::from_secs(2), "the call does not wait for a failed GPU");
}

/// Drops the buffers with two copies in flight, whose first array must survive. The stand-in frees pinned memory at once, and a
/// copy from freed memory is an error.
fn dropped() {
    let (context, stream, mut copies) = copies(0, 2);
    let bytes = vec![7_u8; SLOW_BYTES];
    let kept = copies.copy(&bytes).unwrap();
    drop(copies.copy(&bytes).unwrap());
    let began = Instant::now();
    drop(copies);
    assert!(began.elapsed() > SLOW_COPY, "dropping waits for the copies: {:?}", began.elapsed());
    assert_eq!(stream.clone_dtoh(&kept).unwrap(), bytes);
    drop(kept);
    context.synchronize().unwrap();
    let (free, total) = context.mem_get_info().unwrap();
    assert_eq!(free, total, "all memory is free again");
}

/// Returns the release threshold of the GPU's default memory pool, in bytes.
fn kept_bytes(context: &CudaContext) -> u64 {
    let (mut pool, mut kept) = (std::ptr::null_mut(), 0_u64);
    // SAFETY: both calls write to addresses that are valid during the call.
    unsafe {
        sys::cuDeviceGetDefaultMemPool(&raw mut pool, context.cu_device()).result().unwrap();
        let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        result::mem_pool::get_attribute(pool, threshold, (&raw mut kept).cast()).unwrap();
    }
    kept
}

fn kept() {
    assert_eq!(kept_bytes(&CudaContext::new(0).unwrap()), 0);
    let (context, ..) = copies(0, 2);
    assert_eq!(kept_bytes(&context), u64::MAX);
}
