//! A text as a sequence of characters: the first 90 % for training, the rest held out.

use std::path::Path;
use std::sync::Arc;

use crate::byte_file::ByteFile;
use crate::dataset::{Dataset, Kind};
use crate::error::DataError;
use crate::files;
use crate::schema::Schema;
use crate::source::Options;
use crate::stored_text::{Characters, Marks, StoredText, TextFiles};

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
        Characters::Files(TextFiles { files, marks, vocabulary: vocabulary.clone() })
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
    while offset < file.length() {
        let more = (file.length() - offset).min(BLOCK as u64) as usize;
        let kept = block.len();
        block.resize(kept + more, 0);
        file.read_into(offset, &mut block[kept..])?;
        offset += more as u64;
        let valid = match std::str::from_utf8(&block) {
            Ok(text) => text.len(),
            // The rest of the last character is in the next block.
            Err(error) if error.error_len().is_none() && offset < file.length() => error.valid_up_to(),
            Err(error) => {
                let position = offset as usize - block.len() + error.valid_up_to();
                let problem = format!("is not UTF-8 text: no valid character at byte {position}");
                return Err(DataError::file(file.path(), problem));
            }
        };
        let (text, _) = block.split_at(valid);
        std::str::from_utf8(text).expect("it is valid up to here").chars().for_each(&mut each);
        block.drain(..valid);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
