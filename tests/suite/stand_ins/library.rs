//! The NCCL functions that these tests call.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaStream};
use libloading::Library;

pub(crate) const SUCCESS: c_int = 0;
pub(crate) const UNHANDLED_CUDA_ERROR: c_int = 1;
pub(crate) const INTERNAL_ERROR: c_int = 3;
pub(crate) const INVALID_ARGUMENT: c_int = 4;
pub(crate) const INVALID_USAGE: c_int = 5;
pub(crate) const REMOTE_ERROR: c_int = 6;
pub(crate) const IN_PROGRESS: c_int = 7;

pub(crate) const FLOAT: c_int = 7;
pub(crate) const SUM: c_int = 0;

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Id(pub(crate) [u8; 128]);

/// `ncclConfig_t` of NCCL 2.30, whose further settings are left undefined.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    further: [c_int; 19],
}

type Comm = usize;
type Status = c_int;
type In = *const c_void;
type Out = *mut c_void;
type Stream = *mut c_void;

macro_rules! functions {
    ($($field:ident = $name:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// The library that `UNISONO_NCCL` names.
        pub(crate) struct Nccl {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Nccl {
            pub(crate) fn load() -> Self {
                let path = std::env::var_os("UNISONO_NCCL").expect("the launcher sets its path");
                // SAFETY: the types are those of `nccl.h`; the library is never closed.
                unsafe {
                    let library = Box::leak(Box::new(Library::new(path).unwrap()));
                    Self { $($field: *library.get($name).unwrap(),)* }
                }
            }
        }
    };
}

functions! {
    version = b"ncclGetVersion": fn(*mut c_int) -> Status;
    unique_id = b"ncclGetUniqueId": fn(*mut Id) -> Status;
    error_string = b"ncclGetErrorString": fn(Status) -> *const c_char;
    last_error = b"ncclGetLastError": fn(Comm) -> *const c_char;
    init = b"ncclCommInitRankConfig": fn(*mut Comm, c_int, Id, c_int, *const c_void) -> Status;
    finalize = b"ncclCommFinalize": fn(Comm) -> Status;
    destroy = b"ncclCommDestroy": fn(Comm) -> Status;
    abort = b"ncclCommAbort": fn(Comm) -> Status;
    async_error = b"ncclCommGetAsyncError": fn(Comm, *mut Status) -> Status;
    count = b"ncclCommCount": fn(Comm, *mut c_int) -> Status;
    user_rank = b"ncclCommUserRank": fn(Comm, *mut c_int) -> Status;
    device = b"ncclCommCuDevice": fn(Comm, *mut c_int) -> Status;
    all_reduce = b"ncclAllReduce": fn(In, Out, usize, c_int, c_int, Comm, Stream) -> Status;
    reduce = b"ncclReduce": fn(In, Out, usize, c_int, c_int, c_int, Comm, Stream) -> Status;
    broadcast = b"ncclBroadcast": fn(In, Out, usize, c_int, c_int, Comm, Stream) -> Status;
    reduce_scatter = b"ncclReduceScatter": fn(In, Out, usize, c_int, c_int, Comm, Stream) -> Status;
    all_gather = b"ncclAllGather": fn(In, Out, usize, c_int, Comm, Stream) -> Status;
    group_start = b"ncclGroupStart": fn() -> Status;
    group_end = b"ncclGroupEnd": fn() -> Status;
}

impl Nccl {
    pub(crate) fn new_id(&self) -> Id {
        let mut id = Id([0; 128]);
        // SAFETY: the id is valid for a write during the call.
        assert_eq!(unsafe { (self.unique_id)(&raw mut id) }, SUCCESS);
        id
    }

    /// Returns the message of the last error.
    pub(crate) fn message(&self, comm: Comm) -> String {
        // SAFETY: a zero-terminated text that is never freed.
        unsafe { CStr::from_ptr((self.last_error)(comm)) }.to_str().unwrap().to_owned()
    }

    /// Returns the current state of background work.
    pub(crate) fn state(&self, comm: Comm) -> Status {
        let mut state = -1;
        // SAFETY: the state is valid for a write during the call.
        assert_eq!(unsafe { (self.async_error)(comm, &raw mut state) }, SUCCESS);
        state
    }

    /// Waits for background work; returns the final state.
    pub(crate) fn settled(&self, comm: Comm) -> Status {
        let started = Instant::now();
        loop {
            let state = self.state(comm);
            if state != IN_PROGRESS || started.elapsed() > Duration::from_secs(90) {
                return state;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Sums of floats, in place.
    pub(crate) fn sum(&self, rank: &Rank, address: u64, count: usize) -> Status {
        let buffer = address as *mut c_void;
        // SAFETY: the stand-in checks the buffer.
        unsafe { (self.all_reduce)(buffer, buffer, count, FLOAT, SUM, rank.comm, rank.queue()) }
    }
}

/// A rank on its own device.
pub(crate) struct Rank {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) comm: Comm,
    pub(crate) stream: Arc<CudaStream>,
}

impl Rank {
    pub(crate) fn queue(&self) -> Stream {
        self.stream.cu_stream().cast()
    }

    /// Creates a communicator. Returns the rank and the status of the call.
    pub(crate) fn new(
        nccl: &Nccl,
        id: Id,
        (rank, ranks): (usize, usize),
        device: usize,
        blocking: bool,
    ) -> (Self, Status) {
        let context = CudaContext::new(device).unwrap();
        let stream = context.new_stream().unwrap();
        let mut further = [c_int::MIN; 19];
        // Two pointers: the network's name, and the communicator's.
        further[3..5].fill(0);
        further[7..9].fill(0);
        let config = Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: 23_007,
            blocking: c_int::from(blocking),
            further,
        };
        let mut comm = 0;
        let (of, this) = (ranks as c_int, rank as c_int);
        // SAFETY: the communicator is valid for a write, and the configuration valid, during the call.
        let status = unsafe { (nccl.init)(&raw mut comm, of, id, this, (&raw const config).cast()) };
        (Self { rank, ranks, comm, stream }, status)
    }
}

/// Runs ranks as threads, each on the given device, with blocking or non-blocking communicators.
pub(crate) fn threads<T: Send>(
    devices: &[usize],
    blocking: bool,
    body: impl Fn(&Nccl, Rank, Status) -> T + Sync,
) -> Vec<T> {
    // Like a program, it loads the driver first.
    CudaContext::new(devices[0]).unwrap();
    let nccl = Nccl::load();
    let (id, body, nccl) = (nccl.new_id(), &body, &nccl);
    std::thread::scope(|scope| {
        let run = |(rank, &device): (usize, &usize)| {
            let place = (rank, devices.len());
            scope.spawn(move || {
                let (rank, status) = Rank::new(nccl, id, place, device, blocking);
                body(nccl, rank, status)
            })
        };
        let ranks: Vec<_> = devices.iter().enumerate().map(run).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}
