//! The creation, failure and end of communicators of the NCCL stand-in.

use std::ffi::{CStr, c_void};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, DevicePtr as _};

use super::library::{
    FLOAT, IN_PROGRESS, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, Nccl, REMOTE_ERROR, Rank, SUCCESS,
    SUM, UNHANDLED_CUDA_ERROR, threads,
};
use super::{Case, case};

const TWO: (&str, &str) = ("STAND_IN_DEVICES", "2");
const SHARED: (&str, &str) = ("NCCL_MULTI_RANK_GPU_ENABLE", "1");
const SOON: (&str, &str) = ("STAND_IN_NCCL_DEADLINE_MS", "1000");

/// The limit for "at once" on a busy machine, far below any deadline.
const AT_ONCE: Duration = Duration::from_secs(2);

pub(crate) const CASES: &[Case] = &[
    case("nccl: versions and texts", &[], words),
    case("nccl: another version", &[("STAND_IN_NCCL_VERSION", "2.18.3")], || assert_eq!(version(), 21_803)),
    case("nccl: two ranks on one device are refused", &[TWO], || duplicate(INVALID_USAGE)),
    case("nccl: two ranks on one device may be allowed", &[TWO, SHARED], || duplicate(SUCCESS)),
    case(
        "nccl: two ranks on one device are refused by an older one",
        &[TWO, SHARED, ("STAND_IN_NCCL_VERSION", "2.30.2")],
        || duplicate(INVALID_USAGE),
    ),
    case("nccl: a device must be chosen", &[], without_device),
    case("nccl: abort while a rank is missing", &[TWO], abort_creation),
    case("nccl: abort in a collective", &[TWO], abort_collective),
    case("nccl: a missing rank", &[TWO, SOON], missing),
    case("nccl: collectives that do not match", &[TWO], mismatch),
    case("nccl: a buffer that is too short", &[TWO, SOON], short_buffer),
    case("nccl: a communicator that does not block", &[TWO], without_blocking),
    case("nccl: a group", &[TWO], group),
    case("nccl: collectives over two streams", &[TWO], two_streams),
    case("nccl: an id is valid once", &[TWO], id_again),
];

fn version() -> i32 {
    let mut version = 0;
    // SAFETY: the version is valid for a write during the call.
    assert_eq!(unsafe { (Nccl::load().version)(&raw mut version) }, SUCCESS);
    version
}

fn words() {
    assert_eq!(version(), 23_007);
    // SAFETY: a zero-terminated text that is never freed.
    let text = |result| unsafe { CStr::from_ptr((Nccl::load().error_string)(result)) }.to_str().unwrap();
    assert_eq!(text(INVALID_USAGE), "invalid usage");
    assert_eq!(text(REMOTE_ERROR), "remote process exited or there was a network error");
}

fn duplicate(expected: i32) {
    threads(&[1, 1], true, |nccl, rank, status| {
        assert_eq!(status, expected, "{}", nccl.message(0));
        if expected == INVALID_USAGE {
            assert!(nccl.message(0).contains("Duplicate GPU detected"), "{}", nccl.message(0));
            assert_eq!(rank.comm, 0, "no communicator is returned");
        } else {
            sums(nccl, &rank);
        }
    });
}

/// Checks that a sum of floats is right, and that the communicator then ends.
fn sums(nccl: &Nccl, rank: &Rank) {
    let values = rank.stream.clone_htod(&[rank.rank as f32 + 1.0; 8]).unwrap();
    let status = nccl.sum(rank, values.device_ptr(&rank.stream).0, 8);
    assert!(status == SUCCESS || status == IN_PROGRESS);
    assert_eq!(nccl.settled(rank.comm), SUCCESS);
    let all = (rank.ranks * (rank.ranks + 1) / 2) as f32;
    assert_eq!(rank.stream.clone_dtoh(&values).unwrap(), [all; 8]);
    // SAFETY: only this rank uses it.
    assert_eq!(unsafe { (nccl.destroy)(rank.comm) }, SUCCESS);
}

fn without_device() {
    let context = CudaContext::new(0).unwrap();
    let nccl = Nccl::load();
    let id = nccl.new_id();
    // SAFETY: this needs no current context.
    unsafe { cudarc::driver::result::ctx::set_current(std::ptr::null_mut()) }.unwrap();
    let mut comm = 0;
    // SAFETY: the communicator is valid for a write during the call.
    let status = unsafe { (nccl.init)(&raw mut comm, 1, id, 0, std::ptr::null()) };
    assert_eq!(status, INVALID_USAGE, "{}", nccl.message(0));
    context.bind_to_thread().unwrap();
    // SAFETY: as above.
    let status = unsafe { (nccl.init)(&raw mut comm, 1, id, 1, std::ptr::null()) };
    assert_eq!(status, INVALID_ARGUMENT, "rank 1 of 1");
}

fn abort_creation() {
    CudaContext::new(0).unwrap();
    let nccl = Nccl::load();
    let (rank, status) = Rank::new(&nccl, nccl.new_id(), (0, 2), 0, false);
    assert_eq!(status, IN_PROGRESS);
    for _ in 0..1000 {
        std::thread::yield_now();
        assert_eq!(nccl.state(rank.comm), IN_PROGRESS, "rank 1 is missing");
    }
    let started = Instant::now();
    // SAFETY: only this rank uses it.
    assert_eq!(unsafe { (nccl.abort)(rank.comm) }, SUCCESS);
    assert!(started.elapsed() < AT_ONCE, "{:?}", started.elapsed());
    // SAFETY: the argument is a value; the stand-in detects that the handle is invalid.
    assert_eq!(unsafe { (nccl.abort)(rank.comm) }, INVALID_ARGUMENT, "the handle is no longer one");
}

fn abort_collective() {
    let aborted = Barrier::new(2);
    threads(&[0, 1], true, |nccl, rank, status| {
        assert_eq!(status, SUCCESS);
        if rank.rank == 0 {
            let values = rank.stream.clone_htod(&[1.0_f32; 8]).unwrap();
            assert_eq!(nccl.sum(&rank, values.device_ptr(&rank.stream).0, 8), SUCCESS);
            let done = rank.stream.record_event(None).unwrap();
            for _ in 0..1000 {
                std::thread::yield_now();
                assert_eq!(nccl.state(rank.comm), SUCCESS, "the missing rank is not detected yet");
                assert!(!done.is_complete(), "the stream waits for rank 1");
            }
            let started = Instant::now();
            // SAFETY: only this rank uses it.
            assert_eq!(unsafe { (nccl.abort)(rank.comm) }, SUCCESS);
            rank.stream.synchronize().unwrap();
            assert!(started.elapsed() < AT_ONCE, "{:?}", started.elapsed());
            aborted.wait();
        } else {
            aborted.wait();
            // SAFETY: as above.
            assert_eq!(unsafe { (nccl.abort)(rank.comm) }, SUCCESS);
        }
    });
}

fn missing() {
    threads(&[0, 1], true, |nccl, rank, status| {
        assert_eq!(status, SUCCESS);
        if rank.rank == 1 {
            return;
        }
        let values = rank.stream.clone_htod(&[1.0_f32; 8]).unwrap();
        let address = values.device_ptr(&rank.stream).0;
        assert_eq!(nccl.sum(&rank, address, 8), SUCCESS);
        rank.stream.synchronize().unwrap();
        assert_eq!(nccl.state(rank.comm), REMOTE_ERROR);
        assert!(nccl.message(rank.comm).contains("rank 1"), "{}", nccl.message(rank.comm));
        assert_eq!(nccl.sum(&rank, address, 8), REMOTE_ERROR, "the communicator is unusable");
        // SAFETY: only this rank uses it.
        assert_eq!(unsafe { (nccl.abort)(rank.comm) }, SUCCESS);
    });
}

fn mismatch() {
    threads(&[0, 1], true, |nccl, rank, status| {
        assert_eq!(status, SUCCESS);
        let values = rank.stream.clone_htod(&[1.0_f32; 8]).unwrap();
        let address = values.device_ptr(&rank.stream).0;
        if rank.rank == 0 {
            assert_eq!(nccl.sum(&rank, address, 8), SUCCESS);
        } else {
            let buffer = address as *mut c_void;
            // SAFETY: the buffer has the length that the collective needs.
            let status = unsafe { (nccl.broadcast)(buffer, buffer, 7, FLOAT, 1, rank.comm, rank.queue()) };
            assert_eq!(status, SUCCESS);
        }
        rank.stream.synchronize().unwrap();
        assert_eq!(nccl.state(rank.comm), INTERNAL_ERROR);
        let message = nccl.message(rank.comm);
        assert!(message.contains("rank 0 calls AllReduce of 8 F32 by Sum"), "{message}");
        assert!(message.contains("rank 1 calls Broadcast of 7 F32 with root 1"), "{message}");
    });
}

fn short_buffer() {
    threads(&[0, 1], true, |nccl, rank, status| {
        assert_eq!(status, SUCCESS);
        let values = rank.stream.clone_htod(&[1.0_f32; 8]).unwrap();
        assert_eq!(nccl.sum(&rank, values.device_ptr(&rank.stream).0, 9), SUCCESS);
        assert!(rank.stream.synchronize().is_err(), "an access out of bounds is an error of the stream");
        assert_eq!(nccl.state(rank.comm), UNHANDLED_CUDA_ERROR, "{}", nccl.message(rank.comm));
    });
}

fn without_blocking() {
    threads(&[0, 1], false, |nccl, rank, status| {
        assert_eq!(status, IN_PROGRESS);
        assert_eq!(nccl.settled(rank.comm), SUCCESS);
        let values = rank.stream.clone_htod(&[rank.rank as f32; 8]).unwrap();
        let address = values.device_ptr(&rank.stream).0;
        let (mut value, mut refused) = (-1, 0);
        for _ in 0..20 {
            assert_eq!(nccl.sum(&rank, address, 8), IN_PROGRESS);
            // SAFETY: the rank is valid for a write during the call.
            let ready = unsafe { (nccl.user_rank)(rank.comm, &raw mut value) };
            refused += usize::from(ready == INVALID_ARGUMENT);
            assert_eq!(nccl.settled(rank.comm), SUCCESS);
        }
        assert!(refused > 0, "the sum was not enqueued yet, and no call was refused");
        assert_eq!(rank.stream.clone_dtoh(&values).unwrap(), [(1 << 19) as f32; 8]);
        // SAFETY: only this rank uses it.
        unsafe {
            assert_eq!((nccl.finalize)(rank.comm), IN_PROGRESS);
            assert_eq!(nccl.settled(rank.comm), SUCCESS);
            assert_eq!((nccl.destroy)(rank.comm), SUCCESS);
        }
    });
}

fn group() {
    threads(&[0, 1], true, |nccl, rank, status| {
        assert_eq!(status, SUCCESS);
        let values = rank.stream.clone_htod(&[1.0_f32; 8]).unwrap();
        let address = values.device_ptr(&rank.stream).0;
        rank.stream.synchronize().unwrap();
        // SAFETY: the function has no arguments.
        unsafe {
            assert_eq!((nccl.group_end)(), INVALID_USAGE, "no group was started");
            assert_eq!((nccl.group_start)(), SUCCESS);
            assert_eq!((nccl.group_start)(), SUCCESS);
        }
        for _ in 0..3 {
            assert_eq!(nccl.sum(&rank, address, 8), SUCCESS);
        }
        // SAFETY: the arguments are values.
        unsafe {
            assert_eq!((nccl.group_end)(), SUCCESS);
            assert_eq!(
                rank.stream.clone_dtoh(&values).unwrap(),
                [1.0; 8],
                "only the outer end starts the calls"
            );
            assert_eq!((nccl.group_end)(), SUCCESS);
        }
        assert_eq!(rank.stream.clone_dtoh(&values).unwrap(), [8.0; 8], "one after the other");
        sums(nccl, &rank);
    });
}

fn two_streams() {
    threads(&[0, 1], true, |nccl, rank, status| {
        assert_eq!(status, SUCCESS);
        let other = rank.stream.context().new_stream().unwrap();
        let pairs: Vec<_> = (0..20)
            .map(|round| {
                let value = (round + rank.rank) as f32;
                let on = if round % 2 == 0 { &rank.stream } else { &other };
                let values = on.clone_htod(&[value; 16]).unwrap();
                let buffer = values.device_ptr(on).0 as *mut c_void;
                let queue = on.cu_stream().cast();
                // SAFETY: the buffer has the length that the collective needs, and is not freed before.
                let status = unsafe { (nccl.all_reduce)(buffer, buffer, 16, FLOAT, SUM, rank.comm, queue) };
                assert_eq!(status, SUCCESS);
                (round, values)
            })
            .collect();
        rank.stream.context().synchronize().unwrap();
        for (round, values) in pairs {
            let expected = (2 * round + 1) as f32;
            assert_eq!(rank.stream.clone_dtoh(&values).unwrap(), [expected; 16]);
        }
        sums(nccl, &rank);
    });
}

fn id_again() {
    CudaContext::new(0).unwrap();
    let nccl = Nccl::load();
    let id = nccl.new_id();
    let (rank, status) = Rank::new(&nccl, id, (0, 1), 0, true);
    assert_eq!(status, SUCCESS, "{}", nccl.message(0));
    sums(&nccl, &rank);
    let (_, status) = Rank::new(&nccl, id, (0, 1), 0, true);
    assert_ne!(status, SUCCESS, "its memory is freed");
    assert!(nccl.message(0).contains("unique id"), "{}", nccl.message(0));
}
