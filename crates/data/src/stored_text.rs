//! A text that stays in its files, and whose windows are read when a batch needs them.

use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use crate::batch::Values;
use crate::byte_file::ByteFile;
use crate::error::DataError;

/// Characters between two marks.
const STRIDE: usize = 256;

/// The offsets of every 256th character, so that each can be found.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// Empty as long as all characters are one byte.
    offsets: Vec<u64>,
    characters: usize,
    bytes: u64,
}

impl Marks {
    /// Notes the next character.
    pub(super) fn pass(&mut self, character: char) {
        if !character.is_ascii() && self.offsets.is_empty() {
            self.offsets = (0..=self.characters / STRIDE).map(|mark| (mark * STRIDE) as u64).collect();
        }
        let is_marked = self.characters.is_multiple_of(STRIDE) && !self.offsets.is_empty();
        if is_marked && self.offsets.len() == self.characters / STRIDE {
            self.offsets.push(self.bytes);
        }
        self.characters += 1;
        self.bytes += character.len_utf8() as u64;
    }

    /// The number of characters.
    pub(super) fn characters(&self) -> usize {
        self.characters
    }

    /// The offset of the last mark at or before a character, and how many characters are between.
    fn before(&self, character: usize) -> (u64, usize) {
        match self.offsets.get(character / STRIDE) {
            Some(&offset) => (offset, character % STRIDE),
            None => (character as u64, 0),
        }
    }

    /// The offset of the first mark at or after a character, or of the end.
    fn after(&self, character: usize) -> u64 {
        match self.offsets.is_empty() {
            true => character as u64,
            false => self.offsets.get(character.div_ceil(STRIDE)).copied().unwrap_or(self.bytes),
        }
    }
}

/// The files of a text.
#[derive(Debug)]
pub(super) struct TextFiles {
    /// In order, each with its offset in the text; a character is within one of them.
    files: Vec<(u64, ByteFile)>,
    marks: Marks,
    /// The distinct characters, sorted.
    vocabulary: Vec<char>,
}

impl TextFiles {
    pub(super) fn new(files: Vec<ByteFile>, marks: Marks, vocabulary: Vec<char>) -> Self {
        let mut end = 0;
        let place = |file: ByteFile| {
            let start = end;
            end += file.length();
            (start, file)
        };
        Self { files: files.into_iter().map(place).collect(), marks, vocabulary }
    }

    /// The places in the vocabulary of so many characters, from the character `first` on.
    fn read(&self, first: usize, count: usize) -> Result<Vec<usize>, DataError> {
        let (begin, mut skipped) = self.marks.before(first);
        let end = self.marks.after(first + count);
        let mut places = Vec::with_capacity(count);
        for (start, file) in &self.files {
            let (from, to) = (begin.max(*start), end.min(start + file.length()));
            if from >= to {
                continue;
            }
            let changed = |problem: &str| {
                let problem = format!("{problem}: the file has changed since it was loaded; start again");
                DataError::file(file.path(), problem)
            };
            let bytes = file.read(from - start, (to - from) as usize)?;
            let text = std::str::from_utf8(&bytes).map_err(|_| changed("is no longer UTF-8"))?;
            for character in text.chars() {
                if skipped > 0 {
                    skipped -= 1;
                } else if places.len() < count {
                    let place = self.vocabulary.binary_search(&character);
                    let unknown = |_| changed(&format!("contains `{character}`, which was not there"));
                    places.push(place.map_err(unknown)?);
                }
            }
            if places.len() < count && to == end {
                return Err(changed("has fewer characters"));
            }
        }
        Ok(places)
    }
}

/// A part of a text that stays in its files, divided into windows that do not overlap.
#[derive(Debug, Clone)]
pub struct StoredText {
    files: Arc<TextFiles>,
    /// The first character.
    start: usize,
    /// Characters.
    length: usize,
    /// Tokens in a window.
    context: usize,
    /// The token of each character of the vocabulary.
    tokens: Arc<[u32]>,
}

impl StoredText {
    pub(super) fn new(files: &Arc<TextFiles>, start: usize, length: usize, context: usize) -> Self {
        let tokens = (0..files.vocabulary.len() as u32).collect();
        Self { files: Arc::clone(files), start, length, context, tokens }
    }

    /// The number of characters.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Tokens in a window.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The same text with `tokens[i]` in place of token `i`.
    pub(crate) fn renumbered(&self, tokens: &[u32]) -> Self {
        let tokens = self.tokens.iter().map(|&token| tokens[token as usize]).collect();
        Self { tokens, ..self.clone() }
    }

    fn read(&self, start: usize, count: usize) -> Result<impl Iterator<Item = u32>, DataError> {
        let places = self.files.read(self.start + start, count)?;
        Ok(places.into_iter().map(|place| self.tokens[place]))
    }

    /// Adds all tokens to a hash.
    pub(crate) fn hash(&self, hasher: &mut Xxh3) -> Result<(), DataError> {
        const AT_ONCE: usize = 1 << 16;
        for start in (0..self.length).step_by(AT_ONCE) {
            let tokens: Vec<_> = self.read(start, AT_ONCE.min(self.length - start))?.collect();
            hasher.update(bytemuck::cast_slice(&tokens));
        }
        Ok(())
    }

    /// Reads windows, all moved by `shift`.
    pub(crate) fn gather(&self, samples: &[usize], shift: usize) -> Result<(Values, Vec<u32>), DataError> {
        let (mut inputs, mut targets) = (vec![], vec![]);
        for sample in samples {
            let tokens: Vec<_> = self.read(shift + sample * self.context, self.context + 1)?.collect();
            inputs.extend(&tokens[..self.context]);
            targets.extend(&tokens[1..]);
        }
        Ok((Values::Tokens(inputs), targets))
    }
}

/// Another part of the same text, or other tokens.
impl PartialEq for StoredText {
    fn eq(&self, other: &Self) -> bool {
        let place = |text: &Self| (text.start, text.length, text.context);
        Arc::ptr_eq(&self.files, &other.files) && place(self) == place(other) && self.tokens == other.tokens
    }
}
