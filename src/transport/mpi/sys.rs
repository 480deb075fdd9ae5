//! MPI functions with checked return codes, and all other raw calls. Sections are those of the MPI 4.0 standard (§).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::ThreadId;

use mpi::environment::{self, Threading};
use mpi::ffi;
use unisono_collectives::Rank;

use crate::error::{Error, Result};

/// Calls an MPI function. Returns its name and its return code, for [`check`].
macro_rules! call {
    ($function:ident($($argument:expr),*)) => { (stringify!($function), ffi::$function($($argument),*)) };
}

mod collectives;

pub(super) use collectives::reduce_local;

/// A tag that no message uses.
const NO_TAG: c_int = 7;

/// A lock around MPI calls: `MPI_THREAD_SERIALIZED` allows one at a time, and groups may be used on several threads.
static LOCK: Mutex<()> = Mutex::new(());

pub(super) fn may_call(only: Option<ThreadId>) -> bool {
    only.is_none_or(|only| only == std::thread::current().id())
}

/// # Panics
/// If MPI allows calls from another thread only.
pub(super) fn check_thread(only: Option<ThreadId>) {
    assert!(
        may_call(only),
        "this MPI allows calls from one thread only: use the communicator on the thread that made it, or initialise MPI \
         with MPI_THREAD_SERIALIZED"
    );
}

/// Locks MPI for a call. A function that holds the lock calls none that takes it.
#[inline]
fn lock() -> MutexGuard<'static, ()> {
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns an error for a return code other than `MPI_SUCCESS`, with its text by `MPI_Error_string` (§9.4).
fn check((call, code): (&'static str, c_int)) -> Result<()> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let (mut text, mut length) = ([0_u8; ffi::MPI_MAX_ERROR_STRING as usize + 1], 0);
    // SAFETY: the buffer has the size that MPI requires.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &raw mut length) };
    let text = CStr::from_bytes_until_nul(&text).unwrap_or_default().to_string_lossy().into_owned();
    Err(Error::Mpi { call, code, text: if text.is_empty() { "no text".to_owned() } else { text } })
}

/// Returns the name and version of the MPI library.
pub(crate) fn library_version() -> String {
    plain_version(environment::library_version().unwrap_or_default().trim_end_matches('\0'))
}

/// Returns the name and version of the MPI header that this program was compiled with; empty if unknown.
pub(crate) fn header_version() -> String {
    // SAFETY: the function returns a constant C string.
    let text = unsafe { CStr::from_ptr(unisono_mpi_of_header()) };
    plain_version(&text.to_string_lossy())
}

/// Returns the version text of an MPI in a uniform format: "Open MPI v4.1.4", "MPICH 4.0.2".
fn plain_version(text: &str) -> String {
    let first = text.lines().next().and_then(|line| line.split(',').next()).unwrap_or_default();
    let words = first.split([' ', '\t', ':']).filter(|word| !word.is_empty() && *word != "Version");
    // Intel's text continues with the operating system.
    words.take_while(|word| *word != "for").collect::<Vec<_>>().join(" ")
}

unsafe extern "C" {
    /// In `header.c`.
    safe fn unisono_mpi_of_header() -> *const c_char;
}

/// The state of MPI in this process, which can be initialised and finalised once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    NotYet,
    Up,
    Over,
}

pub(super) fn state() -> State {
    match (environment::is_initialized(), environment::is_finalized()) {
        (_, true) => State::Over,
        (true, false) => State::Up,
        (false, false) => State::NotYet,
    }
}

/// Initialises MPI with `MPI_THREAD_SERIALIZED`: `MPI_Init_thread` (§11.2.1).
pub(super) fn init() -> Result<()> {
    let mut provided = 0;
    // SAFETY: MPI was never initialised, as the caller has checked. The arguments of the process are optional.
    check(unsafe {
        let required = ffi::RSMPI_THREAD_SERIALIZED;
        call!(MPI_Init_thread(std::ptr::null_mut(), std::ptr::null_mut(), required, &raw mut provided))
    })
}

/// Finalises MPI, which waits for the other ranks: `MPI_Finalize` (§11.2.2).
pub(super) fn finalize() -> Result<()> {
    // SAFETY: called once, by the communicator that initialised MPI, at its end.
    check(unsafe { call!(MPI_Finalize()) })
}

/// Returns whether any thread may call MPI, one at a time. MPI is initialised.
pub(super) fn any_thread_may_call() -> bool {
    environment::threading_support() >= Threading::Serialized
}

/// A communicator handle. Copies refer to the same communicator.
#[derive(Debug, Clone, Copy)]
pub(super) struct Comm(pub(super) ffi::MPI_Comm);

// SAFETY: a handle is a number or an address that MPI interprets. The level of thread support determines the threads that may use it, which
// `check_thread` checks at every exchange.
unsafe impl Send for Comm {}

// SAFETY: as for `Send`.
unsafe impl Sync for Comm {}

impl Comm {
    /// Returns the communicator of all launched processes, `MPI_COMM_WORLD` (§7.2.4).
    pub(super) fn world() -> Self {
        // SAFETY: a constant of the library.
        Self(unsafe { ffi::RSMPI_COMM_WORLD })
    }

    /// Returns a communicator of the same ranks with a separate context, which returns errors: `MPI_Comm_dup` (§7.4.2).
    pub(super) fn duplicate(self) -> Result<Self> {
        let _lock = lock();
        let mut copy = self;
        // SAFETY: the handle is valid; all ranks of the communicator do the same.
        check(unsafe { call!(MPI_Comm_dup(self.0, &raw mut copy.0)) })?;
        copy.return_errors()
    }

    /// Makes errors return codes: `MPI_Comm_set_errhandler` (§9.3.1).
    fn return_errors(self) -> Result<Self> {
        // SAFETY: the handle is valid.
        check(unsafe { call!(MPI_Comm_set_errhandler(self.0, ffi::RSMPI_ERRORS_RETURN)) })?;
        Ok(self)
    }

    /// Returns this rank: `MPI_Comm_rank` (§7.4.1).
    pub(super) fn rank(self) -> Result<Rank> {
        let mut rank = 0;
        // SAFETY: the handle is valid.
        check(unsafe { call!(MPI_Comm_rank(self.0, &raw mut rank)) })?;
        Ok(rank as Rank)
    }

    /// Returns the number of ranks: `MPI_Comm_size` (§7.4.1).
    pub(super) fn ranks(self) -> Result<usize> {
        let mut ranks = 0;
        // SAFETY: the handle is valid.
        check(unsafe { call!(MPI_Comm_size(self.0, &raw mut ranks)) })?;
        Ok(ranks as usize)
    }

    /// All-gathers the same number of bytes from each rank, rank 0 first: `MPI_Allgather` (§6.7). It blocks, so it is used only during set-up.
    pub(super) fn all_gather(self, own: &[u8]) -> Result<Vec<u8>> {
        let mut all = vec![0_u8; own.len() * self.ranks()?];
        let _lock = lock();
        // SAFETY: `own` is sent, and the buffer has space for as many bytes from each rank.
        check(unsafe {
            let (kind, count) = (ffi::RSMPI_UINT8_T, own.len() as c_int);
            let (sent, into) = (own.as_ptr().cast::<c_void>(), all.as_mut_ptr().cast());
            call!(MPI_Allgather(sent, count, kind, into, count, kind, self.0))
        })?;
        Ok(all)
    }

    /// Ends all processes of the communicator: `MPI_Abort` (§11.4.2).
    pub(super) fn abort(self, exit_code: i32) -> ! {
        // SAFETY: the handle is valid, and no code of this process runs after it.
        unsafe { ffi::MPI_Abort(self.0, exit_code) };
        // This skips exit handlers, which may wait for other ranks.
        signal_hook::low_level::exit(exit_code)
    }

    /// Frees the communicator: `MPI_Comm_free` (§7.4.3).
    pub(super) fn free(mut self) -> Result<()> {
        let _lock = lock();
        // SAFETY: the handle is valid and not used again.
        check(unsafe { call!(MPI_Comm_free(&raw mut self.0)) })
    }

    /// Starts a non-blocking send: `MPI_Isend` (§3.7.2).
    ///
    /// # Safety
    /// The bytes must stay valid and unchanged until the request is done.
    pub(super) unsafe fn begin_send(self, bytes: *const [u8], to: Rank, tag: c_int) -> Result<Request> {
        // SAFETY: the caller keeps the bytes; the other arguments are values.
        begin(|request| unsafe {
            let (kind, size, to) = (ffi::RSMPI_UINT8_T, bytes.len() as c_int, to as c_int);
            call!(MPI_Isend(bytes.cast(), size, kind, to, tag, self.0, request))
        })
    }

    /// Starts a non-blocking receive of at most this many bytes: `MPI_Irecv` (§3.7.2).
    ///
    /// # Safety
    /// The bytes must stay valid and not be accessed by others until the request is done (§3.7.3).
    pub(super) unsafe fn begin_receive(self, bytes: *mut [u8], from: Rank, tag: c_int) -> Result<Request> {
        // SAFETY: the caller keeps the bytes; the other arguments are values.
        begin(|request| unsafe {
            let (kind, size, from) = (ffi::RSMPI_UINT8_T, bytes.len() as c_int, from as c_int);
            call!(MPI_Irecv(bytes.cast(), size, kind, from, tag, self.0, request))
        })
    }

    /// Drives MPI's progress by probing for a message that no rank sends: `MPI_Iprobe` (§3.8.1). Errors are ignored, since the next call
    /// returns them too.
    pub(super) fn progress(self) {
        // Another thread in an MPI call drives it too.
        let locked = LOCK.try_lock();
        if matches!(locked, Err(TryLockError::WouldBlock)) {
            return;
        }
        let mut found = 0;
        // SAFETY: `found` lives to the end of the call.
        unsafe {
            let any = ffi::RSMPI_ANY_SOURCE;
            ffi::MPI_Iprobe(any, NO_TAG, self.0, &raw mut found, ffi::RSMPI_STATUS_IGNORE);
        }
        debug_assert_eq!(found, 0, "no message has this tag");
    }

    /// Starts to receive a message from a rank, if one has arrived that matches no posted receive: `MPI_Improbe` (§3.8.2) and `MPI_Imrecv`
    /// (§3.8.3). `place` returns the bytes for it.
    ///
    /// # Safety
    /// As for [`Comm::begin_receive`].
    pub(super) unsafe fn begin_arrived(
        self,
        from: Rank,
        tag: c_int,
        place: impl FnOnce() -> *mut [u8],
    ) -> Result<Option<Request>> {
        let (mut found, mut message) = (0, MaybeUninit::uninit());
        let locked = lock();
        // SAFETY: all outputs live to the end of the call.
        check(unsafe {
            let (from, ignored) = (from as c_int, ffi::RSMPI_STATUS_IGNORE);
            call!(MPI_Improbe(from, tag, self.0, &raw mut found, message.as_mut_ptr(), ignored))
        })?;
        drop(locked);
        if found == 0 {
            return Ok(None);
        }
        let bytes = place();
        // SAFETY: the caller keeps the bytes; a message was found, so it is written, and it is received once.
        let request = begin(|request| unsafe {
            let (kind, size) = (ffi::RSMPI_UINT8_T, bytes.len() as c_int);
            call!(MPI_Imrecv(bytes.cast(), size, kind, message.as_mut_ptr(), request))
        });
        request.map(Some)
    }
}

/// A request handle of a non-blocking operation.
#[derive(Debug)]
pub(super) struct Request(ffi::MPI_Request);

// SAFETY: as for `Comm`.
unsafe impl Send for Request {}

/// Starts a non-blocking operation, which writes its request.
fn begin(start: impl FnOnce(*mut ffi::MPI_Request) -> (&'static str, c_int)) -> Result<Request> {
    let _lock = lock();
    let mut request = MaybeUninit::uninit();
    check(start(request.as_mut_ptr()))?;
    // SAFETY: the call succeeded, so it has written the request.
    Ok(Request(unsafe { request.assume_init() }))
}

impl Request {
    /// Returns whether the operation is done, so that the caller may use the memory again, and drives progress: `MPI_Test` (§3.7.3).
    pub(super) fn is_done(&mut self) -> Result<bool> {
        let _lock = lock();
        let mut done = 0;
        // SAFETY: the request was begun. When it is done, MPI makes it null, and then a test succeeds at once.
        check(unsafe { call!(MPI_Test(&raw mut self.0, &raw mut done, ffi::RSMPI_STATUS_IGNORE)) })?;
        Ok(done != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::plain_version;

    #[test]
    fn versions_have_a_uniform_format() {
        for (text, version) in [
            ("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4", "Open MPI v4.1.4"),
            ("MPICH Version:\t4.0.2\nMPICH Release date:\tThu", "MPICH 4.0.2"),
            ("MVAPICH2 Version      :\t2.3.7\n", "MVAPICH2 2.3.7"),
            ("Intel(R) MPI Library 2021.18.1 for Linux* OS\n", "Intel(R) MPI Library 2021.18.1"),
            ("", ""),
        ] {
            assert_eq!(plain_version(text), version);
        }
    }
}
