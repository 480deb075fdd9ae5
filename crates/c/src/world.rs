//! The start of worlds.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use unisono::{Error, gather_padded};
use unisono_bindings::ByProgram;

use super::comm::{Comm, out, required_text};
use super::errors::{Result, argument, guarded};
use super::options::{self, Settings};
use super::waits::with_callback;

/// Gathers `size_bytes` bytes from every rank, rank 0's first, on all ranks. `own` has the bytes of this rank, and `all` has space
/// for those of all ranks. Returns 0, or another number if it failed. With MPI it is one line:
///
///     return MPI_Allgather(own, size_bytes, MPI_BYTE, all, size_bytes, MPI_BYTE, *(MPI_Comm *)context);
pub type Gather = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        own: *const c_void,
        all: *mut c_void,
        size_bytes: usize,
    ) -> c_int,
>;

/// Starts a world among processes that can gather bytes from each other, with MPI for example. All of them call it, each with its
/// own `rank` of `ranks`. It calls `gather` the same number of times on all ranks, before it returns.
///
/// # Safety
/// The function must be as its type describes, for this context; the settings null or valid; and the pointer valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_start(
    rank: c_int,
    ranks: c_int,
    gather: Gather,
    context: *mut c_void,
    settings: *const Settings,
    comm: *mut *mut Comm,
) -> c_int {
    guarded(|| {
        // SAFETY: as the caller promises, for both.
        let (place, builder) = unsafe { (out(comm, "the communicator")?, options::builder(settings)?) };
        let gather = gather.ok_or_else(|| argument("the function that gathers is NULL"))?;
        let (rank, ranks) = position(rank, ranks)?;
        let mut gather = move |own: &[u8]| {
            let mut all = vec![0_u8; own.len() * ranks];
            // SAFETY: as the caller promises; `all` has space for the bytes of all ranks.
            let code = unsafe { gather(context, own.as_ptr().cast(), all.as_mut_ptr().cast(), own.len()) };
            if code == 0 {
                return Ok(all);
            }
            Err(Error::Launch(format!(
                "the program's function that gathers from all ranks returned {code} on rank {rank}"
            )))
        };
        let bootstrap =
            ByProgram { rank, ranks, all_gather: move |own: &[u8]| gather_padded(own, &mut gather) };
        *place = Comm::into_raw(with_callback(|| builder.bootstrap(bootstrap).processes())?);
        Ok(())
    })
}

/// Stores `size_bytes` bytes under a key, for the ranks of all processes. Returns 0, or another number if it failed.
pub type Set = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        key: *const c_char,
        value: *const c_void,
        size_bytes: usize,
    ) -> c_int,
>;

/// Waits until a key is set, copies its bytes to `value`, which has space for `*size_bytes`, and stores their number in
/// `*size_bytes`. Returns 0, or another number if it failed. It must not wait for ever.
pub type Get = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        key: *const c_char,
        value: *mut c_void,
        size_bytes: *mut usize,
    ) -> c_int,
>;

/// The limit of the values that ranks store under a key.
const MOST_BYTES: usize = 1 << 20;

/// A key-value store of the program.
struct Store {
    rank: usize,
    ranks: usize,
    name: String,
    set: unsafe extern "C" fn(*mut c_void, *const c_char, *const c_void, usize) -> c_int,
    get: unsafe extern "C" fn(*mut c_void, *const c_char, *mut c_void, *mut usize) -> c_int,
    context: *mut c_void,
    round: usize,
}

impl Store {
    fn key(&self, rank: usize) -> CString {
        CString::new(format!("{}/{}/{rank}", self.name, self.round)).expect("a name from C has no zero byte")
    }

    fn failed(&self, what: &str, key: &CStr, code: c_int) -> Error {
        let (rank, key) = (self.rank, key.to_string_lossy());
        Error::Launch(format!(
            "the program's store could not {what} `{key}` on rank {rank}: it returned {code}"
        ))
    }

    fn all_gather(&mut self, own: &[u8]) -> unisono::Result<Vec<Vec<u8>>> {
        let key = self.key(self.rank);
        // SAFETY: as the caller of `unisono_start_store` promises.
        let code = unsafe { (self.set)(self.context, key.as_ptr(), own.as_ptr().cast(), own.len()) };
        if code != 0 {
            return Err(self.failed("set", &key, code));
        }
        let mut all = Vec::with_capacity(self.ranks);
        let mut place = vec![0_u8; MOST_BYTES];
        for rank in 0..self.ranks {
            let (key, mut size_bytes) = (self.key(rank), MOST_BYTES);
            // SAFETY: as the caller of `unisono_start_store` promises; the buffer has space for the passed number of bytes.
            let code = unsafe {
                (self.get)(self.context, key.as_ptr(), place.as_mut_ptr().cast(), &raw mut size_bytes)
            };
            if code != 0 {
                return Err(self.failed("get", &key, code));
            }
            if size_bytes > MOST_BYTES {
                let key = key.to_string_lossy();
                return Err(Error::Launch(format!(
                    "the value of `{key}` in the program's store has {size_bytes} bytes: expected at most {MOST_BYTES}"
                )));
            }
            all.push(place[..size_bytes].to_vec());
        }
        self.round += 1;
        Ok(all)
    }
}

/// Starts a world among processes that share a key-value store. All of them call it, each with its own `rank` of `ranks` and the
/// same `name`, which prefixes the keys and must differ from that of any other world in the store. A key is set once.
///
/// # Safety
/// The functions must be as their types describe, for this context; the name a string; the settings null or valid; and the pointer
/// valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_start_store(
    rank: c_int,
    ranks: c_int,
    name: *const c_char,
    set: Set,
    get: Get,
    context: *mut c_void,
    settings: *const Settings,
    comm: *mut *mut Comm,
) -> c_int {
    guarded(|| {
        // SAFETY: as the caller promises, for all three.
        let (place, builder, name) = unsafe {
            (
                out(comm, "the communicator")?,
                options::builder(settings)?,
                required_text(name, "the name of the world")?.to_owned(),
            )
        };
        let (Some(set), Some(get)) = (set, get) else {
            return Err(argument("a function of the store is NULL"));
        };
        let (rank, ranks) = position(rank, ranks)?;
        let mut store = Store { rank, ranks, name, set, get, context, round: 0 };
        let bootstrap = ByProgram { rank, ranks, all_gather: move |own: &[u8]| store.all_gather(own) };
        *place = Comm::into_raw(with_callback(|| builder.bootstrap(bootstrap).processes())?);
        Ok(())
    })
}

/// Joins the world of processes that a launcher has started: `unisono launch`, `torchrun`, `mpirun`, `srun`, or any launcher that
/// sets RANK and WORLD_SIZE. Without a launcher, it is a world of one rank. Ranks of one machine find each other by files, in the
/// folder UNISONO_BOOTSTRAP_DIR if that is set; those of several machines connect to rank 0 at the port after MASTER_PORT of
/// MASTER_ADDR.
///
/// # Safety
/// The settings must be null or valid, and the pointer valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_start_launched(settings: *const Settings, comm: *mut *mut Comm) -> c_int {
    guarded(|| {
        // SAFETY: as the caller promises, for both.
        let (place, builder) = unsafe { (out(comm, "the communicator")?, options::builder(settings)?) };
        *place = Comm::into_raw(with_callback(|| builder.detect())?);
        Ok(())
    })
}

/// Starts a world of `ranks` threads of this process: stores this many communicators, rank 0's first. Use each on its own thread.
///
/// # Safety
/// The settings must be null or valid, and `comms` must have space for `ranks` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_start_threads(
    ranks: c_int,
    settings: *const Settings,
    comms: *mut *mut Comm,
) -> c_int {
    guarded(|| {
        // SAFETY: as the caller promises, for both.
        let (_, builder) = unsafe { (out(comms, "the communicators")?, options::builder(settings)?) };
        for (rank, comm) in builder.threads(count(ranks)?)?.into_iter().enumerate() {
            // SAFETY: the caller guarantees space for all ranks.
            unsafe { comms.add(rank).write(Comm::into_raw(comm)) };
        }
        Ok(())
    })
}

fn position(rank: c_int, ranks: c_int) -> Result<(usize, usize)> {
    let ranks = count(ranks)?;
    let position = usize::try_from(rank).ok().filter(|rank| *rank < ranks);
    position.map(|rank| (rank, ranks)).ok_or_else(|| argument(format!("rank {rank} is not one of {ranks}")))
}

fn count(ranks: c_int) -> Result<usize> {
    let ranks = usize::try_from(ranks).ok().filter(|&ranks| ranks > 0);
    ranks.ok_or_else(|| argument("a world has at least one rank"))
}
