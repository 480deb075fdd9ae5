//! Ranks whose calls on GPUs differ after all kinds of call were made once, so that no message is exchanged before NCCL is called.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaStream, DeviceRepr, ValidAsZeroBits};
use unisono::{Algorithm, Communicator, Element, Error, Operation, ReduceOp, Result};

/// A call, as `make` makes it.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Sum(usize),
    Max(usize),
    Integers(usize),
    Gather(usize),
    Broadcast(usize),
    Labelled(&'static str),
}

use Kind::{Broadcast, Gather, Integers, Labelled, Max, Sum};

const KINDS: [Kind; 8] = [
    Sum(1000),
    Sum(999),
    Max(1000),
    Integers(1000),
    Gather(1000),
    Broadcast(0),
    Broadcast(1),
    Labelled("bucket 1"),
];
/// The name of a case, the calls of rank 1 and of the others, and parts of their errors.
type Case = (&'static str, &'static [Kind], &'static [Kind], [&'static str; 2]);

const CASES: [Case; 8] = [
    ("order", &[Sum(999), Sum(1000)], &[Sum(1000), Sum(999)], ["of 1000 f32, sum", "of 999 f32, sum"]),
    ("count", &[Sum(999)], &[Sum(1000)], ["of 1000 f32", "of 999 f32"]),
    ("type", &[Integers(1000)], &[Sum(1000)], ["of 1000 f32", "of 1000 i32"]),
    ("reduction", &[Max(1000)], &[Sum(1000)], ["f32, sum", "f32, max"]),
    ("operation", &[Gather(1000)], &[Sum(1000)], ["all-reduce #", "all-gather #"]),
    ("root", &[Broadcast(1)], &[Broadcast(0)], ["root 0", "root 1"]),
    ("label", &[Labelled("bucket 2")], &[Labelled("bucket 1")], ["\"bucket 1\"", "\"bucket 2\""]),
    // A kind that is new to rank 1 only: it waits for messages, and the others for NCCL.
    ("a new kind", &[Sum(5)], &[Sum(1000)], ["of 1000 f32", "of 5 f32"]),
];
const RANKS: usize = 3;
const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) fn all() {
    for (name, differs, others, expected) in CASES {
        let begun = Instant::now();
        let ended = after_all_kinds(TIMEOUT, move |comm, stream| {
            let calls = if comm.rank() == 1 { differs } else { others };
            calls.iter().try_for_each(|&kind| make(comm, kind, stream))?;
            comm.synchronize(stream)
        });
        for ended in ended {
            let error = ended.unwrap_err();
            let text = error.to_string();
            assert!(error.is_fatal() && text.contains("rank 1 called"), "{name}: {text}");
            assert!(expected.iter().all(|part| text.contains(part)), "{name}: {text}");
        }
        assert!(begun.elapsed() < TIMEOUT, "{name}: the mismatch is detected before the deadline");
    }
    one_call_more();
    let waits: [Then; 2] = [Communicator::synchronize, by_the_host];
    for then in waits {
        missing(then);
        left(then);
    }
    ahead();
    too_far_ahead();
    allocation_waits_for_no_rank();
}

/// Makes calls of all kinds on all ranks, then runs `work`, and returns its results.
fn after_all_kinds(
    timeout: Duration,
    work: impl Fn(&mut Communicator, &Arc<CudaStream>) -> Result<()> + Sync + Send + 'static,
) -> Vec<Result<()>> {
    unisono::threads(RANKS, move |mut comm| {
        let stream = comm.device()?.new_stream().unwrap();
        KINDS.iter().try_for_each(|&kind| make(&mut comm, kind, &stream))?;
        comm.synchronize(&stream)?;
        comm.set_timeout(timeout);
        work(&mut comm, &stream)
    })
}

fn make(comm: &mut Communicator, kind: Kind, stream: &Arc<CudaStream>) -> Result<()> {
    match kind {
        Sum(count) => run::<f32>(comm, Operation::AllReduce, Some(ReduceOp::Sum), count, stream),
        Max(count) => run::<f32>(comm, Operation::AllReduce, Some(ReduceOp::Max), count, stream),
        Integers(count) => run::<i32>(comm, Operation::AllReduce, Some(ReduceOp::Sum), count, stream),
        Gather(count) => run::<f32>(comm, Operation::AllGather, None, count, stream),
        Broadcast(root) => run::<f32>(comm, Operation::Broadcast { root }, None, 1000, stream),
        Labelled(label) => {
            let (operation, op) = (Operation::AllReduce, Some(ReduceOp::Sum));
            run::<f32>(&mut comm.call().label(label), operation, op, 1000, stream)
        }
    }
}

fn run<T: Element + DeviceRepr + ValidAsZeroBits>(
    comm: &mut Communicator,
    operation: Operation,
    op: Option<ReduceOp>,
    count: usize,
    stream: &Arc<CudaStream>,
) -> Result<()> {
    let mut array = stream.alloc_zeros::<T>(count).unwrap();
    let ran = comm.run_device(operation, op, &mut array, stream)?;
    assert_eq!(ran.method.name(), "nccl");
    Ok(())
}

/// One rank makes an additional call before a call in host memory.
fn one_call_more() {
    let ended = after_all_kinds(TIMEOUT, |comm, stream| {
        if comm.rank() == 1 {
            make(comm, Sum(1000), stream)?;
        }
        comm.barrier()?;
        comm.synchronize(stream)
    });
    for ended in ended {
        let text = ended.unwrap_err().to_string();
        assert!(text.contains("called barrier #") && text.contains("rank 1 called"), "{text}");
    }
}

/// A wait on the host for work that is queued behind a call by NCCL.
type Then = fn(&mut Communicator, &Arc<CudaStream>) -> Result<()>;

fn by_the_host(comm: &mut Communicator, stream: &Arc<CudaStream>) -> Result<()> {
    let mut array = stream.alloc_zeros::<f32>(1000).unwrap();
    comm.set_choice(Algorithm::Ring)?;
    comm.all_reduce_device(&mut array, ReduceOp::Sum, stream).map(drop)
}

/// One rank makes no call, while the others are in NCCL, on the GPU.
fn missing(then: Then) {
    let all_have_ended = Arc::new(Barrier::new(RANKS));
    let ended = after_all_kinds(Duration::from_secs(1), move |comm, stream| {
        let done = match comm.rank() {
            1 => Ok(()),
            _ => make(comm, Sum(1000), stream).and_then(|()| then(comm, stream)),
        };
        all_have_ended.wait();
        done
    });
    for (rank, ended) in ended.into_iter().enumerate().filter(|(rank, _)| *rank != 1) {
        let text = ended.unwrap_err().to_string();
        assert!(
            text.contains("all-reduce #16 by nccl") && text.contains("for rank 1"),
            "rank {rank}: {text}"
        );
    }
}

/// One rank leaves instead.
fn left(then: Then) {
    let begun = Instant::now();
    let ended = after_all_kinds(TIMEOUT, move |comm, stream| {
        if comm.rank() == 1 {
            return Ok(());
        }
        make(comm, Sum(1000), stream)?;
        then(comm, stream)
    });
    for (rank, ended) in ended.into_iter().enumerate().filter(|(rank, _)| *rank != 1) {
        let text = ended.unwrap_err().to_string();
        assert!(text.contains("rank 1 has left"), "rank {rank}: {text}");
    }
    assert!(begun.elapsed() < TIMEOUT);
}

/// Calls of a known kind return before the others have made theirs.
fn ahead() {
    let are_made = Arc::new(Barrier::new(RANKS));
    let ended = after_all_kinds(TIMEOUT, move |comm, stream| {
        let mut array = stream.clone_htod(&[comm.rank() as f32; 1000]).unwrap();
        let make_all = |comm: &mut Communicator, array: &mut _| {
            (0..100).try_for_each(|_| comm.all_reduce_device(array, ReduceOp::Max, stream).map(drop))
        };
        if comm.rank() != 1 {
            make_all(comm, &mut array)?;
        }
        are_made.wait();
        if comm.rank() == 1 {
            make_all(comm, &mut array)?;
        }
        let reduced = stream.clone_dtoh(&array).unwrap();
        comm.synchronize(stream)?;
        assert_eq!(reduced, [2.0; 1000]);
        Ok(())
    });
    ended.into_iter().for_each(|ended| ended.unwrap());
}

/// A rank is at most a limited number of calls ahead of another.
fn too_far_ahead() {
    let all_have_ended = Arc::new(Barrier::new(RANKS));
    let ended = after_all_kinds(Duration::from_secs(1), move |comm, stream| {
        let done = match comm.rank() {
            1 => Ok(()),
            _ => (0..1000).try_for_each(|_| make(comm, Sum(1000), stream)),
        };
        all_have_ended.wait();
        done
    });
    // All ranks make calls 0 to 15, and 128 more are ahead.
    for (rank, ended) in ended.into_iter().enumerate().filter(|(rank, _)| *rank != 1) {
        let error = ended.unwrap_err();
        assert!(
            matches!(error, Error::Timeout { other: 1, .. } | Error::Aborted { .. }),
            "rank {rank}: {error}"
        );
        assert!(error.to_string().contains("all-reduce #144 by nccl"), "rank {rank}: {error}");
    }
}

/// Rank 0 allocates memory behind a call on the default stream that rank 1 makes only later.
fn allocation_waits_for_no_rank() {
    let ended = after_all_kinds(TIMEOUT, |comm, _| {
        let stream = comm.device()?.default_stream();
        if comm.rank() == 1 {
            comm.receive(&mut [0_u8], 0)?;
        }
        let mut array = stream.clone_htod(&[1.0_f32; 1000]).unwrap();
        comm.all_reduce_device(&mut array, ReduceOp::Sum, &stream)?;
        if comm.rank() == 0 {
            let zeros = comm.alloc_device::<f32>(10)?;
            comm.send(&[1_u8], 1)?;
            assert_eq!(stream.clone_dtoh(&zeros).unwrap(), [0.0; 10]);
            assert!(comm.alloc_device::<f32>(0)?.is_empty());
        }
        comm.synchronize(&stream)
    });
    ended.into_iter().for_each(|ended| ended.unwrap());
}
