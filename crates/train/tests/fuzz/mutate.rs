//! Inputs that are almost right: what is right, with a few things wrong.
//!
//! The test has no coverage to go by, as `crates/fuzz/` has. The message about an input stands in its place: one that brings an answer
//! that was not heard before is kept, and is what later ones are made from.

use std::collections::HashSet;

use unisono_testing::random::Random;

/// Numbers at which something may turn over.
const NUMBERS: [u64; 14] = [
    0,
    1,
    2,
    7,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 40,
    i64::MAX as u64,
    u64::MAX,
];

/// The most that is kept.
const MOST: usize = 512;
/// The longest input: what is repeated without end tests nothing but deadlines.
const LONGEST_BYTES: usize = 64 << 10;

/// The sources of inputs.
#[derive(Debug)]
pub struct Corpus {
    pub inputs: Vec<Vec<u8>>,
    /// The number of them that are right: the first ones.
    seeds: usize,
    /// Words of the format.
    pub words: &'static [&'static str],
    answers: HashSet<String>,
}

impl Corpus {
    pub fn new(seeds: Vec<Vec<u8>>, words: &'static [&'static str]) -> Self {
        Self { seeds: seeds.len(), inputs: seeds, words, answers: HashSet::new() }
    }

    /// Another input.
    pub fn draw(&self, random: &mut Random) -> Vec<u8> {
        let (seeds, all) = (&self.inputs[..self.seeds], &self.inputs[..]);
        let from = if random.once_in(2) { seeds } else { all };
        let mut input = random.one_of(from);
        let changes = random.one_of(&[1, 1, 1, 2, 2, 4, 16]);
        for _ in 0..changes {
            self.change(&mut input, random);
        }
        input.truncate(LONGEST_BYTES);
        input
    }

    /// Keeps an input whose answer is new, up to the numbers in it.
    pub fn learn(&mut self, input: Vec<u8>, answer: &str) {
        let shape: String =
            answer.chars().filter(|c| c.is_ascii_alphabetic() || *c == ' ').take(200).collect();
        if self.inputs.len() < MOST && self.answers.insert(shape) {
            self.inputs.push(input);
        }
    }

    /// Returns the number of answers that were heard.
    pub fn answers(&self) -> u64 {
        self.answers.len() as u64
    }

    fn change(&self, input: &mut Vec<u8>, random: &mut Random) {
        let length = input.len();
        // The kind of a file is at its beginning.
        let near = if random.once_in(2) { length.min(40) } else { length };
        let at = random.below(near + 1);
        let some = random.below(1 + random.clone().one_of(&[4, 32, 512])).min(length - at);
        match random.below(11) {
            0 if at < length => input[at] ^= 1 << random.below(8),
            1 if at < length => input[at] = random.bits() as u8,
            2 => {
                let number = random.one_of(&NUMBERS).wrapping_add(random.below(3) as u64).wrapping_sub(1);
                let (size, is_big) = (random.one_of(&[1, 2, 4, 8]), random.once_in(2));
                let bytes = if is_big { number.to_be_bytes() } else { number.to_le_bytes() };
                let bytes = if is_big { &bytes[8 - size..] } else { &bytes[..size] };
                input.iter_mut().skip(at).zip(bytes).for_each(|(place, &byte)| *place = byte);
            }
            3 => input.truncate(at),
            4 => drop(input.drain(at..at + some)),
            5 => {
                let again = input[at..at + some].to_vec();
                input.splice(at..at, again);
            }
            6 => {
                let other = random.one_of(&self.inputs);
                let from = random.below(other.len() + 1);
                let end = (from + 1 + random.below(64)).min(other.len());
                input.splice(at..at + some, other[from..end].iter().copied());
            }
            7 => {
                let random_bytes: Vec<_> = (0..1 + random.below(8)).map(|_| random.bits() as u8).collect();
                input.splice(at..at, random_bytes);
            }
            8 => self.renumber(input, at, random),
            9 if !self.words.is_empty() => {
                let word = random.one_of(self.words);
                let put_in = if random.once_in(2) { some } else { 0 };
                input.splice(at..at + put_in, word.bytes());
            }
            _ => {
                let other = random.one_of(&self.inputs);
                input.truncate(at);
                input.extend(&other[at.min(other.len())..]);
            }
        }
    }

    /// Writes another number in place of the next one in a text.
    fn renumber(&self, input: &mut Vec<u8>, from: usize, random: &mut Random) {
        let Some(start) = (from..input.len()).find(|&at| input[at].is_ascii_digit()) else { return };
        let end = (start..input.len()).find(|&at| !input[at].is_ascii_digit()).unwrap_or(input.len());
        let number = match random.below(6) {
            0 => "-1".to_owned(),
            1 => "1e999".to_owned(),
            2 => "0.5".to_owned(),
            3 => "123456789012345678901234567890".to_owned(),
            _ => random.one_of(&NUMBERS).to_string(),
        };
        input.splice(start..end, number.bytes());
    }
}
