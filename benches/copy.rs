//! Copies at all offsets within a page, beside `memcpy`: `cargo bench --bench copy`.
//!
//! For each length, the destination has every offset modulo 4096 from the source, and the source has other offsets too. Each offset is
//! measured in several rounds, over places that exceed a core's first cache together, and counts with its fastest round.

use std::hint::black_box;
use std::time::{Duration, Instant};

use unisono::copy;

const LENGTHS: [usize; 7] = [4 << 10, 8 << 10, 32 << 10, 128 << 10, 512 << 10, 1 << 20, 48 << 20];
const PAGE: usize = 4096;
/// The bytes copied per offset and round, in as many places.
const TURN_BYTES: usize = 256 << 10;
const ROUNDS: usize = 7;

/// An array that begins at a page.
struct Pages {
    words: Vec<u64>,
    start: usize,
}

impl Pages {
    fn new(size_bytes: usize) -> Self {
        let words = vec![1; (size_bytes + PAGE) / size_of::<u64>()];
        let start = words.as_ptr().align_offset(PAGE);
        Self { words, start }
    }

    fn part(&mut self, from: usize, size_bytes: usize) -> &mut [u8] {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.words[self.start..]);
        &mut bytes[from..from + size_bytes]
    }
}

/// Returns the fastest time of one copy at each offset.
fn times(
    copy: fn(&mut [u8], &[u8]),
    length: usize,
    offsets: &[(usize, usize)],
    rounds: usize,
) -> Vec<Duration> {
    let places = (TURN_BYTES / length).max(1);
    let room = length + 2 * PAGE;
    let (mut to, mut from) = (Pages::new(places * room), Pages::new(places * room));
    let mut best = vec![Duration::MAX; offsets.len()];
    for _ in 0..rounds {
        for (best, &(into, out_of)) in best.iter_mut().zip(offsets) {
            let began = Instant::now();
            for place in 0..places {
                copy(
                    to.part(place * room + into, length),
                    black_box(from.part(place * room + out_of, length)),
                );
            }
            *best = (*best).min(began.elapsed() / places as u32);
        }
    }
    best
}

fn row(name: &str, copy: fn(&mut [u8], &[u8]), length: usize, offsets: &[(usize, usize)], rounds: usize) {
    let times = times(copy, length, offsets, rounds);
    let mut order: Vec<_> = (0..times.len()).collect();
    order.sort_by_key(|&index| times[index]);
    let [fastest, median, slowest] = [0, order.len() / 2, order.len() - 1].map(|place| order[place]);
    let us = |index: usize| times[index].as_secs_f64() * 1e6;
    let (into, out_of) = offsets[slowest];
    println!(
        "{length:>9} bytes  {name:8} fastest {:9.3} us  median {:9.3} us  slowest {:9.3} us ({out_of} to {into})  slowest / fastest {:.2}",
        us(fastest),
        us(median),
        us(slowest),
        us(slowest) / us(fastest)
    );
}

fn main() {
    let is_bench = std::env::args().any(|word| word == "--bench");
    let all = (0..PAGE).flat_map(|ahead| {
        let out_of = ahead * 37 % PAGE;
        [(ahead, 0), ((out_of + ahead) % PAGE, out_of)]
    });
    let all: Vec<_> = all.collect();
    for length in LENGTHS {
        let is_large = length > 4 << 20;
        // Few offsets of arrays in memory: they take long, and differ little.
        let step = if is_large { 1024 } else { 1 };
        let step = if is_bench { step } else { PAGE };
        let offsets: Vec<_> = all.iter().copied().step_by(step).collect();
        let rounds = if is_bench { ROUNDS } else { 1 };
        row("ours", copy, length, &offsets, rounds);
        let some: Vec<_> = offsets.iter().copied().step_by(if is_large { 1 } else { 16 }).collect();
        row("memcpy", <[u8]>::copy_from_slice, length, &some, rounds);
    }
}
