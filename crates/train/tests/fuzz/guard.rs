//! The limits for all inputs: memory in proportion to the input, and time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::abort;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// An input that takes longer hangs.
const MOST: Duration = Duration::from_secs(20);

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The memory that may be in use.
static BOUND_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);
/// The number of inputs.
static INPUTS: AtomicU64 = AtomicU64::new(0);
/// The command that reproduces the input that is being read; empty if none is. Locked only while nothing is
/// read.
static AGAIN: Mutex<String> = Mutex::new(String::new());

/// Ends the program: code inside an allocation, or that never ends, cannot panic.
fn end(why: &str) -> ! {
    eprintln!("of the input that is being read: {why}");
    if let Ok(again) = AGAIN.try_lock() {
        eprintln!("to make this case again: {again}");
    }
    abort();
}

/// The system's allocator, which ends the program where an input asks for too much.
struct Bounded;

impl Bounded {
    fn grows(bytes: usize) {
        let live = LIVE_BYTES.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if live > BOUND_BYTES.load(Ordering::Relaxed) {
            BOUND_BYTES.store(usize::MAX, Ordering::Relaxed);
            end(&format!("it asks for {bytes} bytes, with which {live} would be in use"));
        }
    }
}

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::grows(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::grows(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Bounded = Bounded;

/// Reads an input under guard: the program ends if it takes more than so much memory at a time.
pub fn guarded<R>(again: &str, bound_bytes: usize, read: impl FnOnce() -> R) -> R {
    let say = |again: &str| {
        let mut said = AGAIN.lock().unwrap();
        said.clear();
        said.push_str(again);
    };
    say(again);
    INPUTS.fetch_add(1, Ordering::Relaxed);
    let bound = LIVE_BYTES.load(Ordering::Relaxed) + bound_bytes;
    BOUND_BYTES.store(bound, Ordering::Relaxed);
    let result = read();
    BOUND_BYTES.store(usize::MAX, Ordering::Relaxed);
    say("");
    result
}

/// Ends the program if an input takes too long.
pub fn watch() {
    std::thread::spawn(|| {
        let mut seen = (0, Instant::now());
        loop {
            std::thread::sleep(Duration::from_millis(500));
            let inputs = INPUTS.load(Ordering::Relaxed);
            let reads = AGAIN.lock().is_ok_and(|again| !again.is_empty());
            if inputs != seen.0 || !reads {
                seen = (inputs, Instant::now());
            } else if seen.1.elapsed() > MOST {
                end(&format!("it takes more than {MOST:?}"));
            }
        }
    });
}
