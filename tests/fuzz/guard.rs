//! What no input may do: take more memory than it is worth, or more time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::abort;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::soak::Soak;

/// An input that takes longer hangs.
const MOST: Duration = Duration::from_secs(20);

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
/// What may be in use.
static BOUND_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);
static SEED: AtomicU64 = AtomicU64::new(0);
/// The input that is being read: its number, plus one.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// Ends the program: nothing that is in the midst of an allocation, or never ends, can panic.
fn end(why: &str) -> ! {
    let (seed, number) = (SEED.load(Ordering::Relaxed), NUMBER.load(Ordering::Relaxed));
    let soak = Soak { seed, ..Soak::default() };
    eprintln!("of the input that is being read: {why}");
    eprintln!("to make this case again: {}", soak.again(number.saturating_sub(1)));
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
pub fn guarded<R>((seed, number): (u64, u64), bound_bytes: usize, read: impl FnOnce() -> R) -> R {
    SEED.store(seed, Ordering::Relaxed);
    NUMBER.store(number + 1, Ordering::Relaxed);
    let bound = LIVE_BYTES.load(Ordering::Relaxed) + bound_bytes;
    BOUND_BYTES.store(bound, Ordering::Relaxed);
    let result = read();
    BOUND_BYTES.store(usize::MAX, Ordering::Relaxed);
    NUMBER.store(0, Ordering::Relaxed);
    result
}

/// Ends the program if an input takes too long.
pub fn watch() {
    std::thread::spawn(|| {
        let mut seen = (0, Instant::now());
        loop {
            std::thread::sleep(Duration::from_millis(500));
            let number = NUMBER.load(Ordering::Relaxed);
            if number != seen.0 {
                seen = (number, Instant::now());
            } else if number > 0 && seen.1.elapsed() > MOST {
                end(&format!("it takes more than {MOST:?}"));
            }
        }
    });
}
