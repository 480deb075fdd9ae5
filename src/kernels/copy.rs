//! Copies of user data.
//!
//! `memcpy` of glibc copies more than a few KiB by `rep movsb`, which takes 14 to 28 times as long on an AMD EPYC (Zen 4) where the
//! destination is a few bytes ahead of the source within a page. These copies take about the same time at all offsets:
//! destinations are aligned to cache lines, and the direction keeps loads away from addresses that were just stored, modulo a page.
//!
//! Arrays of a fixed size are copied by a few loads and stores in the registers of the level. A step of the loop consists of several, since
//! the compiler replaces a loop of one load and one store by a call of `memcpy`.

use std::sync::LazyLock;

use super::Kernel;
use super::lanes::{LINE, Lanes, Line};
use super::level::{Level, Pass};

/// The bytes that one step of the loop copies.
const BLOCK: usize = 4 * LINE;
/// Processors compare the addresses of loads and earlier stores within a page, and delay loads that seem to depend on a store.
const PAGE: usize = 4096;

/// Copies `from` to `to`, as collectives copy. A copy that exceeds the caches bypasses them.
///
/// The time is about the same for all offsets of the two arrays within a page. The time of `copy_from_slice` is not on some systems, whose
/// `memcpy` copies more than a few KiB by an instruction that is slow at some offsets. This function is faster for copies to
/// [registered memory](crate::Communicator::alloc) and back.
///
/// ```
/// let mut registered = unisono::Registered::<f32>::local(1 << 16)?;
/// unisono::copy(&mut registered, &vec![1.0; 1 << 16]);
/// assert_eq!(registered[(1 << 16) - 1], 1.0);
/// # Ok::<(), unisono::Error>(())
/// ```
///
/// # Panics
/// If the two differ in size.
#[inline]
pub fn copy<T: bytemuck::Pod>(to: &mut [T], from: &[T]) {
    static COPIES: LazyLock<Copies> = LazyLock::new(|| Copies::at_level(Level::best()));
    let (to, from): (&mut [u8], &[u8]) = (bytemuck::cast_slice_mut(to), bytemuck::cast_slice(from));
    let Copies { cached, streamed, streamed_bytes } = &*COPIES;
    let copy = if to.len() < *streamed_bytes { cached } else { streamed };
    copy(to, from);
}

pub(super) struct Copies {
    pub(super) cached: Kernel,
    pub(super) streamed: Kernel,
    /// The size from which copies are streamed.
    streamed_bytes: usize,
}

impl Copies {
    pub(super) fn at_level(level: Level) -> Self {
        // A smaller copy fits the last-level cache at least partly, and some core reads it from there next.
        let streamed_bytes = last_cache_bytes().map_or(usize::MAX, |bytes| bytes / 4 * 3);
        Self {
            cached: level.compiled::<Copy<false>>(),
            streamed: level.compiled::<Copy<true>>(),
            streamed_bytes,
        }
    }
}

/// A copy, through the caches or by non-temporal stores.
struct Copy<const STREAMED: bool>;

impl<const STREAMED: bool> Pass for Copy<STREAMED> {
    type Beside<'a> = &'a [u8];

    #[inline(always)]
    fn run<L: Lanes>(lanes: L, to: &mut [u8], from: &[u8]) {
        assert_eq!(to.len(), from.len(), "source and destination must have the same size");
        if to.len() < BLOCK {
            short(to, from);
            return;
        }
        // The bytes before the first whole line, and those after the last whole block.
        start::<LINE>(to, from);
        end::<BLOCK>(to, from);
        let ahead = (to.as_ptr() as usize).wrapping_sub(from.as_ptr() as usize) % PAGE;
        let (head, lines, _) = bytemuck::pod_align_to_mut::<u8, Line>(to);
        let blocks = lines.as_chunks_mut().0.iter_mut().zip(from[head.len()..].as_chunks().0);
        // Forwards, a load would closely follow a store to the same offset within a page.
        if (1..PAGE / 2).contains(&ahead) {
            for (to, from) in blocks.rev() {
                block::<L, STREAMED, true>(lanes, to, from);
            }
        } else {
            for (to, from) in blocks {
                block::<L, STREAMED, false>(lanes, to, from);
            }
        }
        if STREAMED {
            lanes.order_streams();
        }
    }
}

/// Copies four lines, the last one first if `BACKWARDS`.
#[inline(always)]
fn block<L: Lanes, const STREAMED: bool, const BACKWARDS: bool>(
    lanes: L,
    to: &mut [Line; BLOCK / LINE],
    from: &[u8; BLOCK],
) {
    let from: &[[u8; LINE]; BLOCK / LINE] = bytemuck::cast_ref(from);
    let place = |step: usize| if BACKWARDS { BLOCK / LINE - 1 - step } else { step };
    line::<L, STREAMED>(lanes, &mut to[place(0)], &from[place(0)]);
    line::<L, STREAMED>(lanes, &mut to[place(1)], &from[place(1)]);
    line::<L, STREAMED>(lanes, &mut to[place(2)], &from[place(2)]);
    line::<L, STREAMED>(lanes, &mut to[place(3)], &from[place(3)]);
}

#[inline(always)]
fn line<L: Lanes, const STREAMED: bool>(lanes: L, to: &mut Line, from: &[u8; LINE]) {
    if STREAMED {
        lanes.stream(to, from);
    } else {
        to.0 = *from;
    }
}

/// Copies less than a block, by two copies that overlap.
#[inline(always)]
fn short(to: &mut [u8], from: &[u8]) {
    match to.len() {
        128.. => both_ends::<128>(to, from),
        64.. => both_ends::<64>(to, from),
        32.. => both_ends::<32>(to, from),
        16.. => both_ends::<16>(to, from),
        8.. => both_ends::<8>(to, from),
        4.. => both_ends::<4>(to, from),
        2.. => both_ends::<2>(to, from),
        1 => to[0] = from[0],
        0 => {}
    }
}

#[inline(always)]
fn both_ends<const N: usize>(to: &mut [u8], from: &[u8]) {
    start::<N>(to, from);
    end::<N>(to, from);
}

#[inline(always)]
fn start<const N: usize>(to: &mut [u8], from: &[u8]) {
    let ends = to.first_chunk_mut::<N>().zip(from.first_chunk());
    let (to, from) = ends.expect("the slice has at least N bytes");
    *to = *from;
}

#[inline(always)]
fn end<const N: usize>(to: &mut [u8], from: &[u8]) {
    let ends = to.last_chunk_mut::<N>().zip(from.last_chunk());
    let (to, from) = ends.expect("the slice has at least N bytes");
    *to = *from;
}

/// Returns the size of the last level of the processor's caches, if it is known.
#[cfg(target_arch = "x86_64")]
fn last_cache_bytes() -> Option<usize> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    /// "Deterministic cache parameters": Intel's leaf, and AMD's, which has the same fields.
    const LEAVES: [(u32, u32); 2] = [(0, 4), (0x8000_0000, 0x8000_001d)];
    let caches =
        LEAVES.into_iter().filter(|&(first, leaf)| __cpuid(first).eax >= leaf).flat_map(|(_, leaf)| {
            (0..8).map(move |index| __cpuid_count(leaf, index)).take_while(|cache| cache.eax & 0x1f != 0)
        });
    let size = |cache: std::arch::x86_64::CpuidResult| {
        let field = |from: u32, bits: u32| ((cache.ebx >> from) & ((1 << bits) - 1)) as usize + 1;
        field(0, 12) * field(12, 10) * field(22, 10) * (cache.ecx as usize + 1)
    };
    caches.map(size).max()
}

#[cfg(not(target_arch = "x86_64"))]
fn last_cache_bytes() -> Option<usize> {
    None
}
