//! A text as a sequence of characters: the first 90 % for training, the rest held out.

use std::hash::Hasher;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::byte_file::ByteFile;
use crate::files;
use crate::{DataError, Dataset, Kind, Options, Pass, Schema, Split, Values};

const BLOCK: usize = 1 << 16;

/// Reads the text in the files that `path` names, one after the other, for windows of `context` characters.
pub(super) fn read(path: &Path, options: &Options) -> Result<Dataset, DataError> {
    let context = options.context;
    if context == 0 {
        return Err(DataError::zero("the context"));
    }
    let files = files::named(path)?.into_iter().map(ByteFile::open).collect::<Result<Vec<_>, _>>()?;
    let mut is_seen = vec![false; char::MAX as usize + 1];
    let (mut marks, mut codes) = (Marks::default(), Vec::<u32>::new());
    let fits = |characters: usize| (size_of::<u32>() * characters) as u64 <= options.in_memory_bytes;
    for file in &files {
        each_character(file, |character| {
            is_seen[character as usize] = true;
            marks.pass(character);
            match fits(marks.characters) {
                true => codes.push(character.into()),
                false => codes = vec![],
            }
        })?;
    }
    let found = marks.characters;
    let train = found - found / 10;
    if ((found / 10) / context).saturating_sub(1) == 0 {
        // A sample needs twice the context (see `Split::len`), and a tenth is held out.
        let expected = context.saturating_mul(20);
        return Err(DataError::too_short(path, "characters", found, expected));
    }
    let vocabulary: Vec<_> = ('\0'..=char::MAX).filter(|&character| is_seen[character as usize]).collect();
    let size = vocabulary.len();
    let characters = if fits(found) {
        let place = |code: u32| vocabulary.partition_point(|&known| u32::from(known) < code) as u32;
        codes.iter_mut().for_each(|code| *code = place(*code));
        Characters::Memory(codes)
    } else {
        Characters::Files { files, marks, vocabulary: vocabulary.clone() }
    };
    let characters = Arc::new(characters);
    let part = |range| StoredText::new(&characters, range, context, size);
    let (train, test) = (part(0..train), part(train..found));
    Ok(Dataset { kind: Kind::Text { context, vocabulary }, train, test, schema: Schema::default() })
}

/// Calls `each` with the characters of a file, one block at a time.
fn each_character(file: &ByteFile, mut each: impl FnMut(char)) -> Result<(), DataError> {
    let mut offset = 0;
    let mut block = vec![];
    while offset < file.length {
        let more = (file.length - offset).min(BLOCK as u64) as usize;
        let kept = block.len();
        block.resize(kept + more, 0);
        file.read_into(offset, &mut block[kept..])?;
        offset += more as u64;
        let valid = match std::str::from_utf8(&block) {
            Ok(text) => text.len(),
            // The rest of the last character is in the next block.
            Err(error) if error.error_len().is_none() && offset < file.length => error.valid_up_to(),
            Err(error) => {
                let position = offset as usize - block.len() + error.valid_up_to();
                let problem = format!("is not UTF-8 text: no valid character at byte {position}");
                return Err(DataError::file(&file.path, problem));
            }
        };
        std::str::from_utf8(&block[..valid]).expect("it is valid up to here").chars().for_each(&mut each);
        block.drain(..valid);
    }
    Ok(())
}

/// Characters between two marks.
const STRIDE: usize = 1024;

/// The offset of every 1024th character, from which the others are found.
#[derive(Debug, Default)]
struct Marks {
    offsets: Vec<u64>,
    characters: usize,
    bytes: u64,
}

impl Marks {
    fn pass(&mut self, character: char) {
        if self.characters.is_multiple_of(STRIDE) {
            self.offsets.push(self.bytes);
        }
        self.characters += 1;
        self.bytes += character.len_utf8() as u64;
    }
}

/// Characters, as indices into a vocabulary, in memory or in consecutive files. Each character is within one file.
#[derive(Debug)]
enum Characters {
    Memory(Vec<u32>),
    Files { files: Vec<ByteFile>, marks: Marks, vocabulary: Vec<char> },
}

impl Characters {
    /// Returns the vocabulary indices of this many characters, from the character `first`.
    fn read(&self, first: usize, count: usize) -> Result<Vec<u32>, DataError> {
        let (files, marks, vocabulary) = match self {
            Self::Memory(places) => return Ok(places[first..][..count].to_vec()),
            Self::Files { files, marks, vocabulary } => (files, marks, vocabulary),
        };
        let (begin, mut skipped) = (marks.offsets[first / STRIDE], first % STRIDE);
        let end = marks.offsets.get((first + count).div_ceil(STRIDE)).copied().unwrap_or(marks.bytes);
        let (mut places, mut start) = (Vec::with_capacity(count), 0);
        for file in files {
            let (from, to) = (begin.max(start), end.min(start + file.length));
            start += file.length;
            if from >= to {
                continue;
            }
            let changed = |problem: &str| {
                let problem = format!("{problem}: the file has changed since it was loaded; start again");
                DataError::file(&file.path, problem)
            };
            let bytes = file.read(from + file.length - start, (to - from) as usize)?;
            let text = std::str::from_utf8(&bytes).map_err(|_| changed("is no longer UTF-8"))?;
            for character in text.chars() {
                if skipped > 0 {
                    skipped -= 1;
                } else if places.len() < count {
                    let place = vocabulary.binary_search(&character);
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
struct StoredText {
    characters: Arc<Characters>,
    range: Range<usize>,
    /// Tokens in a window.
    context: usize,
    /// The token of each character of the vocabulary.
    tokens: Arc<[u32]>,
}

impl StoredText {
    fn new(
        characters: &Arc<Characters>,
        range: Range<usize>,
        context: usize,
        vocabulary: usize,
    ) -> Arc<Self> {
        let tokens = (0..vocabulary as u32).collect();
        Arc::new(Self { characters: Arc::clone(characters), range, context, tokens })
    }

    fn read(&self, first: usize, count: usize) -> Result<Vec<u32>, DataError> {
        let places = self.characters.read(self.range.start + first, count)?;
        Ok(places.iter().map(|&place| self.tokens[place as usize]).collect())
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

#[cfg(test)]
mod tests;
