//! The limits for all inputs: memory in proportion to the input, and time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::abort;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The time after which an input counts as a hang.
const MOST: Duration = Duration::from_secs(20);

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The maximum memory in use.
static BOUND_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);
/// The number of inputs so far.
static INPUTS: AtomicU64 = AtomicU64::new(0);
/// The command that reproduces the current input; empty if there is none. Locked only while no input is read.
static AGAIN: Mutex<String> = Mutex::new(String::new());

/// Ends the program, because code inside an allocation, or in an endless loop, cannot panic.
fn end(why: &str) -> ! {
    eprintln!("of the input that is being read: {why}");
    if let Ok(again) = AGAIN.try_lock() {
        eprintln!("to make this case again: {again}");
    }
    abort();
}

/// The system's allocator with a limit. It ends the program if an input exceeds the limit.
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

// SAFETY: all calls are forwarded to the system's allocator.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::grows(layout.size());
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::grows(layout.size());
        // SAFETY: the caller upholds the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Bounded = Bounded;

/// Reads an input under guard. The program ends if the input takes more than `bound_bytes` of memory at a time.
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

/// Starts a thread that ends the program if an input takes too long.
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
