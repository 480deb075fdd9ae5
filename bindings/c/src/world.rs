//! How worlds start.

use std::ffi::{c_int, c_void};

use unisono::{Bootstrap, Error};

use super::comm::{Comm, out};
use super::errors::{Result, argument, guarded};
use super::options::{self, Settings};

/// Gathers `size_bytes` bytes from every rank, rank 0's first, on all ranks: `own` is this rank's, and `all` has room for those of all.
/// Returns 0, or anything else if it failed. With MPI it is one line:
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

/// A bootstrap by the program's own gather.
struct ByProgram {
    rank: usize,
    ranks: usize,
    gather: unsafe extern "C" fn(*mut c_void, *const c_void, *mut c_void, usize) -> c_int,
    context: *mut c_void,
}

impl ByProgram {
    /// Gathers equally many bytes from all ranks.
    fn gather(&mut self, own: &[u8]) -> unisono::Result<Vec<u8>> {
        let mut all = vec![0; own.len() * self.ranks];
        // SAFETY: as the caller of `unisono_start` promises; `all` has room for the bytes of all ranks.
        let failed =
            unsafe { (self.gather)(self.context, own.as_ptr().cast(), all.as_mut_ptr().cast(), own.len()) };
        if failed == 0 {
            return Ok(all);
        }
        Err(Error::Launch(format!(
            "the program's function that gathers from all ranks returned {failed} on rank {}",
            self.rank
        )))
    }
}

impl Bootstrap for ByProgram {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn all_gather(&mut self, own: &[u8]) -> unisono::Result<Vec<Vec<u8>>> {
        let sizes = self.gather(&(own.len() as u64).to_ne_bytes())?;
        let (sizes, _) = sizes.as_chunks::<8>();
        let sizes: Vec<_> = sizes.iter().map(|size| u64::from_ne_bytes(*size) as usize).collect();
        let most = sizes.iter().copied().max().unwrap_or(0);
        if most == 0 {
            return Ok(vec![Vec::new(); self.ranks]);
        }
        let mut padded = own.to_vec();
        padded.resize(most, 0);
        let all = self.gather(&padded)?;
        Ok(all.chunks(most).zip(sizes).map(|(padded, size)| padded[..size].to_vec()).collect())
    }
}

/// Starts a world among processes of one machine that already have a way to gather bytes from each other, such as an MPI. All of them
/// call it, rank `rank` of `ranks` each, and it calls `gather` on all of them equally often, before it returns.
///
/// # Safety
/// The function must be as [`Gather`] describes, for this context; the settings null or valid; and the pointer valid for writing.
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
        let ranks = count(ranks)?;
        let rank = usize::try_from(rank).ok().filter(|rank| *rank < ranks);
        let rank = rank.ok_or_else(|| argument(format!("the rank is not one of {ranks}")))?;
        let comm = builder.bootstrap(ByProgram { rank, ranks, gather, context }).processes()?;
        *place = Comm::into_raw(comm);
        Ok(())
    })
}

/// Joins the world of processes on this machine that a launcher has started: `unisono launch`, `torchrun`, `mpirun`, or anything that
/// sets RANK and WORLD_SIZE. Without a launcher, it is a world of one rank. The ranks find each other by files, in the folder
/// UNISONO_BOOTSTRAP_DIR if that is set.
///
/// # Safety
/// The settings must be null or valid, and the pointer valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_start_launched(settings: *const Settings, comm: *mut *mut Comm) -> c_int {
    guarded(|| {
        // SAFETY: as the caller promises, for both.
        let (place, builder) = unsafe { (out(comm, "the communicator")?, options::builder(settings)?) };
        *place = Comm::into_raw(builder.detect()?);
        Ok(())
    })
}

/// Starts a world of `ranks` threads of this process: stores as many communicators, rank 0's first. Hand each to a thread of its own.
///
/// # Safety
/// The settings must be null or valid, and `comms` have room for `ranks` pointers.
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
            // SAFETY: there is room for as many, as the caller promises.
            unsafe { comms.add(rank).write(Comm::into_raw(comm)) };
        }
        Ok(())
    })
}

/// A number of ranks.
fn count(ranks: c_int) -> Result<usize> {
    let ranks = usize::try_from(ranks).ok().filter(|&ranks| ranks > 0);
    ranks.ok_or_else(|| argument("a world has at least one rank"))
}
