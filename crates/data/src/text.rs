//! A text as a sequence of characters: the first 90 % for training, the rest held out.

use std::hash::Hasher;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::byte_file::{BLOCK, ByteFile};
use crate::files;
use crate::stored::{NumberWriter, Numbers};
use crate::{DataError, Dataset, Kind, Options, Pass, Schema, Split, Values};

/// Reads the text in the files that `path` names, one after the other, for windows of `context` characters.
pub(super) fn read(path: &Path, options: &Options) -> Result<Dataset, DataError> {
    let context = options.context;
    if context == 0 {
        return Err(DataError::zero("the context"));
    }
    let files = files::named(path)?.into_iter().map(ByteFile::open).collect::<Result<Vec<_>, _>>()?;
    let (mut is_seen, mut vocabulary) = (vec![false; char::MAX as usize + 1], Vec::new());
    let mut codes = NumberWriter::new(path, options.in_memory_bytes);
    for file in &files {
        each_block(file, |text| {
            let seen = text.chars().inspect(|&character| {
                if !std::mem::replace(&mut is_seen[character as usize], true) {
                    vocabulary.push(character);
                }
            });
            codes.extend(seen.map(u32::from))
        })?;
    }
    let found = codes.count;
    let train = found - found / 10;
    if ((found / 10) / context).saturating_sub(1) == 0 {
        // A sample needs twice the context (see `Split::len`), and a tenth is held out.
        let expected = context.saturating_mul(20);
        return Err(DataError::too_short(path, "characters", found, expected));
    }
    vocabulary.sort_unstable();
    let mut tokens = vec![0; 1 + vocabulary[vocabulary.len() - 1] as usize];
    for (token, &character) in (0..).zip(&vocabulary) {
        tokens[character as usize] = token;
    }
    let (codes, tokens) = (Arc::new(codes.finish()?), Arc::<[u32]>::from(tokens));
    let part = |range| {
        Arc::new(StoredText { codes: Arc::clone(&codes), range, context, tokens: Arc::clone(&tokens) })
    };
    let (train, test) = (part(0..train), part(train..found));
    Ok(Dataset { kind: Kind::Text { context, vocabulary }, train, test, schema: Schema::default() })
}

/// Calls `each` with the text of a file, one block at a time.
fn each_block(file: &ByteFile, mut each: impl FnMut(&str) -> Result<(), DataError>) -> Result<(), DataError> {
    let mut offset = 0;
    let mut block = vec![];
    while offset < file.length {
        let more = (file.length - offset).min(BLOCK as u64) as usize;
        let kept = block.len();
        block.resize(kept + more, 0);
        file.read_into(offset, &mut block[kept..])?;
        offset += more as u64;
        let valid = match str::from_utf8(&block) {
            Ok(text) => text.len(),
            // The rest of the last character is in the next block.
            Err(error) if error.error_len().is_none() && offset < file.length => error.valid_up_to(),
            Err(error) => {
                let position = offset as usize - block.len() + error.valid_up_to();
                let problem = format!("is not UTF-8 text: no valid character at byte {position}");
                return Err(DataError::file(&file.path, problem));
            }
        };
        each(str::from_utf8(&block[..valid]).expect("it is valid up to here"))?;
        block.drain(..valid);
    }
    Ok(())
}

/// A part of a text, divided into windows that do not overlap.
#[derive(Debug, Clone)]
struct StoredText {
    codes: Arc<Numbers<u32>>,
    range: Range<usize>,
    /// Tokens in a window.
    context: usize,
    /// The token of each code of a character. Codes that the text does not contain have an arbitrary one.
    tokens: Arc<[u32]>,
}

impl StoredText {
    fn read(&self, first: usize, count: usize) -> Result<Vec<u32>, DataError> {
        let mut tokens = self.codes.read(self.range.start + first, count)?.into_owned();
        tokens.iter_mut().for_each(|token| *token = self.tokens[*token as usize]);
        Ok(tokens)
    }
}

impl Split for StoredText {
    fn len(&self) -> usize {
        (self.range.len() / self.context).saturating_sub(1)
    }

    fn hash(&self, hasher: &mut dyn Hasher) -> Result<(), DataError> {
        for start in (0..self.range.len()).step_by(BLOCK) {
            let tokens = self.read(start, BLOCK.min(self.range.len() - start))?;
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
