//! Inputs that are almost valid: valid inputs with a few mutations.
//!
//! Unlike `crates/fuzz/`, the test has no coverage data. The error message for an input replaces it: an input with a new message is kept, and later
//! inputs are derived from it.

use std::collections::HashSet;

use unisono_testing::random::Random;

/// Numbers at which an overflow or a sign change may occur.
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

/// The maximum number of inputs in the corpus.
const MOST: usize = 512;
/// The length of the longest input. Endless repetition would test only the time limit.
const LONGEST_BYTES: usize = 64 << 10;

/// The inputs from which others are derived.
#[derive(Debug)]
pub struct Corpus {
    pub inputs: Vec<Vec<u8>>,
    /// The number of valid inputs, which come first.
    seeds: usize,
    /// Keywords of the format.
    pub words: &'static [&'static str],
    answers: HashSet<String>,
}

impl Corpus {
    pub fn new(seeds: Vec<Vec<u8>>, words: &'static [&'static str]) -> Self {
        Self { seeds: seeds.len(), inputs: seeds, words, answers: HashSet::new() }
    }

    /// Derives another input.
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

    /// Keeps an input whose error message is new. Messages that differ only in numbers count as equal.
    pub fn learn(&mut self, input: Vec<u8>, answer: &str) {
        let shape: String =
            answer.chars().filter(|c| c.is_ascii_alphabetic() || *c == ' ').take(200).collect();
        if self.inputs.len() < MOST && self.answers.insert(shape) {
            self.inputs.push(input);
        }
    }

    /// Returns the number of different error messages.
    pub fn answers(&self) -> u64 {
        self.answers.len() as u64
    }

    fn change(&self, input: &mut Vec<u8>, random: &mut Random) {
        let length = input.len();
        // The type of a file is encoded at its beginning.
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

    /// Replaces the next number in a text by another.
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
