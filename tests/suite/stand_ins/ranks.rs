//! Compares every collective, element type and operator of the NCCL stand-in with a naive result, with threads and with
//! processes as ranks.

use std::ffi::{c_int, c_void};
use std::process::Stdio;

use cudarc::driver::{CudaSlice, DevicePtr as _};
use half::{bf16, f16};

use super::library::{Id, Nccl, Rank, SUCCESS, threads};
use super::{Case, case, command};

const DEVICES: (&str, &str) = ("STAND_IN_DEVICES", "4");

pub(crate) const CASES: &[Case] = &[
    case("nccl: every collective, 1 thread", &[DEVICES], || over_threads(1)),
    case("nccl: every collective, 2 threads", &[DEVICES], || over_threads(2)),
    case("nccl: every collective, 3 threads", &[DEVICES], || over_threads(3)),
    case("nccl: every collective, 4 threads", &[DEVICES], || over_threads(4)),
    case("nccl: every collective, 2 processes", &[], || over_processes(2)),
    case("nccl: every collective, 3 processes", &[], || over_processes(3)),
];

/// The case of a process that is a rank.
pub(crate) const RANK: &str = "rank";

fn over_threads(ranks: usize) {
    let devices: Vec<_> = (0..ranks).collect();
    threads(&devices, true, |nccl, rank, status| {
        assert_eq!(status, SUCCESS, "{}", nccl.message(0));
        conform(nccl, &rank);
    });
}

fn over_processes(ranks: usize) {
    let nccl = Nccl::load();
    let id: String = nccl.new_id().0.iter().map(|byte| format!("{byte:02x}")).collect();
    let count = ranks.to_string();
    let start = |rank: usize| {
        // Each process sees one device, its own.
        let rank = rank.to_string();
        let environment = [
            ("ID", id.as_str()),
            ("RANKS", &count),
            ("RANK", &rank),
            ("STAND_IN_DEVICES", "4"),
            ("CUDA_VISIBLE_DEVICES", &rank),
        ];
        command(RANK, &environment).stdin(Stdio::null()).spawn().unwrap()
    };
    let processes: Vec<_> = (0..ranks).map(start).collect();
    for mut process in processes {
        // The process ends by itself, since all of its waits have deadlines.
        assert!(process.wait().unwrap().success());
    }
}

/// The program of a process that is a rank.
pub(crate) fn process() {
    let variable = |name: &str| std::env::var(name).unwrap();
    let digits = variable("ID");
    let mut id = Id([0; 128]);
    for (index, byte) in id.0.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).unwrap();
    }
    let place = (variable("RANK").parse().unwrap(), variable("RANKS").parse().unwrap());
    cudarc::driver::CudaContext::new(0).unwrap();
    let nccl = Nccl::load();
    let (rank, status) = Rank::new(&nccl, id, place, 0, true);
    assert_eq!(status, SUCCESS, "{}", nccl.message(0));
    conform(&nccl, &rank);
}

/// An element type: NCCL's number, and its values.
struct Type {
    number: c_int,
    bytes: usize,
    is_float: bool,
    encode: fn(f64) -> Vec<u8>,
    decode: fn(&[u8]) -> f64,
}

macro_rules! types {
    ($($number:literal: $type:ty, $is_float:literal, $from:expr, $to:expr;)*) => {
        [$(Type {
            number: $number,
            bytes: size_of::<$type>(),
            is_float: $is_float,
            encode: |value| { let made: $type = $from(value); made.to_ne_bytes().to_vec() },
            decode: |bytes| $to(<$type>::from_ne_bytes(bytes.try_into().unwrap())),
        }),*]
    };
}

const TYPES: [Type; 9] = types! {
    1: u8, false, |value| value as u8, |value| value as f64;
    2: i32, false, |value| value as i32, |value| value as f64;
    3: u32, false, |value| value as u32, |value| value as f64;
    4: i64, false, |value| value as i64, |value| value as f64;
    5: u64, false, |value| value as u64, |value| value as f64;
    6: f16, true, f16::from_f64, f16::to_f64;
    7: f32, true, |value| value as f32, |value| value as f64;
    8: f64, true, |value: f64| value, |value: f64| value;
    9: bf16, true, bf16::from_f64, bf16::to_f64;
};

/// Small numbers, different on every rank: their product over four ranks fits any type.
fn value(rank: usize, index: usize) -> f64 {
    ((rank * 7 + index * 5 + index / 3) % 4) as f64
}

/// Returns the result of NCCL's operator with this number.
fn reduced(op: c_int, is_float: bool, ranks: usize, index: usize) -> f64 {
    let values = (0..ranks).map(|rank| value(rank, index));
    match op {
        0 => values.sum(),
        1 => values.product(),
        2 => values.fold(f64::MIN, f64::max),
        3 => values.fold(f64::MAX, f64::min),
        _ if is_float => values.sum::<f64>() / ranks as f64,
        _ => (values.sum::<f64>() / ranks as f64).floor(),
    }
}

/// A collective under test, with this rank's buffers on its device.
struct Trial<'a> {
    nccl: &'a Nccl,
    rank: &'a Rank,
    of: &'a Type,
    count: usize,
}

type Buffer = CudaSlice<u8>;

impl Trial<'_> {
    /// Returns this rank's values from `first` up to `end`, exclusive.
    fn values(&self, first: usize, end: usize) -> Buffer {
        let values = (first..end).flat_map(|index| (self.of.encode)(value(self.rank.rank, index)));
        self.rank.stream.clone_htod(&values.collect::<Vec<_>>()).unwrap()
    }

    fn address(&self, buffer: &Buffer) -> *mut c_void {
        buffer.device_ptr(&self.rank.stream).0 as *mut c_void
    }

    /// Calls the collective with a new result buffer, and waits for it.
    fn received(&self, length: usize, call: impl FnOnce(*mut c_void) -> c_int) -> Vec<f64> {
        // SAFETY: the collective writes the whole buffer; otherwise the comparison fails.
        let receive = unsafe { self.rank.stream.alloc::<u8>(length * self.of.bytes) }.unwrap();
        assert_eq!(call(self.address(&receive)), SUCCESS, "{}", self.nccl.message(self.rank.comm));
        self.read(&receive)
    }

    fn read(&self, buffer: &Buffer) -> Vec<f64> {
        let bytes = self.rank.stream.clone_dtoh(buffer).unwrap();
        let error = || self.nccl.message(self.rank.comm);
        assert_eq!(self.nccl.state(self.rank.comm), SUCCESS, "{}", error());
        bytes.chunks(self.of.bytes).map(self.of.decode).collect()
    }

    fn hold(&self, what: &str, received: &[f64], expected: impl Fn(usize) -> f64) {
        for (index, &received) in received.iter().enumerate() {
            let expected = expected(index);
            // A third has 8 bits of precision here. Integers are exact.
            let slack = if expected.fract() == 0.0 && !what.ends_with('4') { 0.0 } else { 0.01 * expected };
            assert!(
                (received - expected).abs() <= slack,
                "{what} of type {}: rank {} has {received} at {index}, not {expected}",
                self.of.number,
                self.rank.rank
            );
        }
    }

    fn reductions(&self, op: c_int) {
        let (rank, count, nccl, number) = (self.rank, self.count, self.nccl, self.of.number);
        let (comm, stream) = (rank.comm, rank.queue());
        let expected = |index| reduced(op, self.of.is_float, rank.ranks, index);
        let send = self.values(0, count);
        let sent = self.address(&send).cast_const();
        // SAFETY: the buffers have the length that the collective needs, and are not freed before.
        let all_reduce = |to| unsafe { (nccl.all_reduce)(sent, to, count, number, op, comm, stream) };
        self.hold(&format!("all-reduce {op}"), &self.received(count, all_reduce), expected);

        let root = rank.ranks - 1;
        // SAFETY: as above; only the root needs a result buffer.
        let reduce = |to| unsafe { (nccl.reduce)(sent, to, count, number, op, root as c_int, comm, stream) };
        if rank.rank == root {
            self.hold(&format!("reduce {op}"), &self.received(count, reduce), expected);
        } else {
            assert_eq!(reduce(std::ptr::null_mut()), SUCCESS);
        }

        // In place: the part of this rank.
        let all = self.values(0, count * rank.ranks);
        let from = self.address(&all);
        let first = rank.rank * count;
        let to = from.wrapping_byte_add(first * self.of.bytes);
        // SAFETY: as above.
        let status = unsafe { (nccl.reduce_scatter)(from, to, count, number, op, comm, stream) };
        assert_eq!(status, SUCCESS);
        let received = self.read(&all);
        let part = &received[first..first + count];
        self.hold(&format!("reduce-scatter {op}"), part, |index| expected(first + index));
    }

    fn moves(&self) {
        let (rank, count, nccl, number) = (self.rank, self.count, self.nccl, self.of.number);
        let (comm, stream) = (rank.comm, rank.queue());
        let send = self.values(0, count);
        let sent = self.address(&send).cast_const();
        for root in 0..rank.ranks {
            let from = if rank.rank == root { sent } else { std::ptr::null() };
            // SAFETY: the buffers have the length that the collective needs, and are not freed before.
            let broadcast =
                |to| unsafe { (nccl.broadcast)(from, to, count, number, root as c_int, comm, stream) };
            self.hold("broadcast", &self.received(count, broadcast), |index| value(root, index));
        }
        // SAFETY: as above.
        let gather = |to| unsafe { (nccl.all_gather)(sent, to, count, number, comm, stream) };
        let received = self.received(count * rank.ranks, gather);
        self.hold("all-gather", &received, |index| value(index / count, index % count));
    }
}

/// Runs all tests as one rank, and ends the communicator.
fn conform(nccl: &Nccl, rank: &Rank) {
    for of in &TYPES {
        let trial = Trial { nccl, rank, of, count: 257 };
        (0..5).for_each(|op| trial.reductions(op));
        trial.moves();
    }
    // More elements than ranks can publish at once.
    let trial = Trial { nccl, rank, of: &TYPES[5], count: 140_001 };
    trial.reductions(0);
    trial.moves();

    // SAFETY: the arguments are values, and addresses that are valid for writes.
    unsafe {
        let mut value = -1;
        assert_eq!((nccl.user_rank)(rank.comm, &raw mut value), SUCCESS);
        assert_eq!(value as usize, rank.rank);
        assert_eq!((nccl.count)(rank.comm, &raw mut value), SUCCESS);
        assert_eq!(value as usize, rank.ranks);
        assert_eq!((nccl.device)(rank.comm, &raw mut value), SUCCESS);
        assert_eq!(value as usize, rank.stream.context().ordinal());
        assert_eq!((nccl.finalize)(rank.comm), SUCCESS);
        assert_eq!((nccl.destroy)(rank.comm), SUCCESS);
    }
}
