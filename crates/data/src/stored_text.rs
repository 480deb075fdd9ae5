//! A text in memory, or in files from which the windows of a batch are read.

use std::hash::Hasher;
use std::ops::Range;
use std::sync::Arc;

use crate::batch::{Pass, Values};
use crate::byte_file::ByteFile;
use crate::error::DataError;
use crate::split::Split;

/// Characters between two marks.
const STRIDE: usize = 1024;

/// The offset of every 1024th character, from which the others are found.
#[derive(Debug, Default)]
pub(super) struct Marks {
    offsets: Vec<u64>,
    pub(super) characters: usize,
    bytes: u64,
}

impl Marks {
    pub(super) fn pass(&mut self, character: char) {
        if self.characters.is_multiple_of(STRIDE) {
            self.offsets.push(self.bytes);
        }
        self.characters += 1;
        self.bytes += character.len_utf8() as u64;
    }
}

/// Characters, as indices into a vocabulary.
#[derive(Debug)]
pub(super) enum Characters {
    Memory(Vec<u32>),
    Files(TextFiles),
}

#[derive(Debug)]
pub(super) struct TextFiles {
    /// The files in order. Each character is within one file.
    pub(super) files: Vec<ByteFile>,
    pub(super) marks: Marks,
    /// The distinct characters, sorted.
    pub(super) vocabulary: Vec<char>,
}

impl TextFiles {
    /// Returns the vocabulary indices of this many characters, from the character `first`.
    fn read(&self, first: usize, count: usize) -> Result<Vec<u32>, DataError> {
        let marks = &self.marks;
        let (begin, mut skipped) = (marks.offsets[first / STRIDE], first % STRIDE);
        let end = marks.offsets.get((first + count).div_ceil(STRIDE)).copied().unwrap_or(marks.bytes);
        let (mut places, mut start) = (Vec::with_capacity(count), 0);
        for file in &self.files {
            let (from, to) = (begin.max(start), end.min(start + file.length()));
            start += file.length();
            if from >= to {
                continue;
            }
            let changed = |problem: &str| {
                let problem = format!("{problem}: the file has changed since it was loaded; start again");
                DataError::file(file.path(), problem)
            };
            let bytes = file.read(from + file.length() - start, (to - from) as usize)?;
            let text = std::str::from_utf8(&bytes).map_err(|_| changed("is no longer UTF-8"))?;
            for character in text.chars() {
                if skipped > 0 {
                    skipped -= 1;
                } else if places.len() < count {
                    let place = self.vocabulary.binary_search(&character);
                    let unknown = |_| changed(&format!("contains `{character}`, which was not there"));
                    places.push(place.map_err(unknown)? as u32);
                }
            }
            if places.len() < count && to == end {
                return Err(changed("has fewer characters"));
            }
        }
        Ok(places)
    }
}

/// A part of a text, divided into windows that do not overlap.
#[derive(Debug, Clone)]
pub(super) struct StoredText {
    characters: Arc<Characters>,
    /// The characters of this part.
    range: Range<usize>,
    /// Tokens in a window.
    context: usize,
    /// The token of each character of the vocabulary.
    tokens: Arc<[u32]>,
}

impl StoredText {
    pub(super) fn new(
        characters: &Arc<Characters>,
        range: Range<usize>,
        context: usize,
        vocabulary: usize,
    ) -> Arc<Self> {
        let tokens = (0..vocabulary as u32).collect();
        Arc::new(Self { characters: Arc::clone(characters), range, context, tokens })
    }

    /// Reads the tokens of this many characters, from the character `first`.
    fn read(&self, first: usize, count: usize) -> Result<Vec<u32>, DataError> {
        let first = self.range.start + first;
        let token = |&place: &u32| self.tokens[place as usize];
        Ok(match &*self.characters {
            Characters::Memory(places) => places[first..][..count].iter().map(token).collect(),
            Characters::Files(files) => files.read(first, count)?.iter().map(token).collect(),
        })
    }
}

impl Split for StoredText {
    fn len(&self) -> usize {
        (self.range.len() / self.context).saturating_sub(1)
    }

    fn hash(&self, hasher: &mut dyn Hasher) -> Result<(), DataError> {
        const AT_ONCE: usize = 1 << 16;
        for start in (0..self.range.len()).step_by(AT_ONCE) {
            let tokens = self.read(start, AT_ONCE.min(self.range.len() - start))?;
            hasher.write(bytemuck::cast_slice(&tokens));
        }
        Ok(())
    }

    fn context(&self) -> Option<usize> {
        Some(self.context)
    }

    fn gather(&self, samples: &[usize], pass: Pass) -> Result<(Values, Vec<u32>), DataError> {
        let shift = match pass {
            Pass::Training { seed, epoch } => self.shift(seed, epoch),
            Pass::Evaluation => 0,
        };
        let (mut inputs, mut targets) = (vec![], vec![]);
        for sample in samples {
            let tokens = self.read(shift + sample * self.context, self.context + 1)?;
            inputs.extend_from_slice(&tokens[..self.context]);
            targets.extend_from_slice(&tokens[1..]);
        }
        Ok((Values::Tokens(inputs), targets))
    }

    fn renumbered(&self, tokens: &[u32]) -> Arc<dyn Split> {
        let tokens = self.tokens.iter().map(|&token| tokens[token as usize]).collect();
        Arc::new(Self { tokens, ..self.clone() })
    }
}
