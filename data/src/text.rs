//! A text as a sequence of characters: the first 90 % for training, the rest held out.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::dataset::{Dataset, Kind};
use crate::error::DataError;
use crate::schema::Schema;
use crate::split::Split;

/// Reads the text in `file`, for windows of `context` characters.
///
/// # Errors
///
/// If `context` is 0, or the file is unreadable, not UTF-8, or too short for a held-out window.
pub(super) fn read(file: &Path, context: usize) -> Result<Dataset, DataError> {
    if context == 0 {
        return Err(DataError::Zero { option: "the context" });
    }
    let path = || file.to_path_buf();
    let bytes = fs::read(file).map_err(|error| DataError::Read { path: path(), error })?;
    let text = String::from_utf8(bytes)
        .map_err(|error| DataError::NotUtf8 { path: path(), position: error.utf8_error().valid_up_to() })?;

    let (vocabulary, mut tokens) = tokenise(&text);
    let found = tokens.len();
    let test = Split::Windows { tokens: tokens.split_off(found - found / 10), context };
    if test.is_empty() {
        // A sample needs twice the context (see `Split::len`), and a tenth is held out.
        let expected = context.saturating_mul(20);
        return Err(DataError::TooShort { path: path(), what: "characters", found, expected });
    }
    let train = Split::Windows { tokens, context };
    Ok(Dataset { kind: Kind::Text { context, vocabulary }, train, test, schema: Schema::default() })
}

/// The sorted distinct characters of `text`, and `text` as indices into them.
fn tokenise(text: &str) -> (Vec<char>, Vec<u32>) {
    let vocabulary: Vec<char> = text.chars().collect::<BTreeSet<_>>().into_iter().collect();
    let token = |c| vocabulary.partition_point(|&known| known < c) as u32;
    let tokens = text.chars().map(token).collect();
    (vocabulary, tokens)
}

#[cfg(test)]
mod tests {
    use super::super::{Inputs, Pass, testing::TestDirectory};
    use super::*;

    const CONTEXT: usize = 8;

    fn alphabet(length: usize) -> String {
        ('a'..='z').cycle().take(length).collect()
    }

    #[test]
    fn tokens_index_the_sorted_vocabulary() {
        let (vocabulary, tokens) = tokenise("hé hello");
        assert_eq!(vocabulary, [' ', 'e', 'h', 'l', 'o', 'é']);
        assert_eq!(tokens, [2, 5, 0, 2, 1, 3, 3, 4]);
    }

    #[test]
    fn targets_are_the_inputs_one_character_on() {
        let directory = TestDirectory::new();
        let data = read(&directory.file("text", alphabet(1000)), CONTEXT).unwrap();
        assert_eq!(data.train.len(), 900 / CONTEXT - 1);
        assert_eq!(data.test.len(), 100 / CONTEXT - 1);

        let batch = data.train.batch(&[3, 0], Pass::Training { seed: 1, epoch: 2 }).unwrap();
        let first = data.train.shift(1, 2) as u32;
        let third = 3 * CONTEXT as u32 + first;
        let windows = |ahead: u32| -> Vec<u32> {
            [third, first]
                .into_iter()
                .flat_map(|start| (0..CONTEXT as u32).map(move |i| (start + ahead + i) % 26))
                .collect()
        };
        assert_eq!(batch.inputs, Inputs::Tokens(windows(0)));
        assert_eq!(batch.targets, windows(1));
    }

    #[test]
    fn every_shift_fits_every_window() {
        for length in 2 * CONTEXT..4 * CONTEXT {
            let split = Split::Windows { tokens: vec![0; length], context: CONTEXT };
            assert!(!split.is_empty());
            let last = (0..).find(|&epoch| split.shift(1, epoch) == CONTEXT - 1).unwrap();
            split.batch(&[split.len() - 1], Pass::Training { seed: 1, epoch: last }).unwrap();
        }
    }

    #[test]
    fn shifts_depend_on_seed_and_epoch_alone() {
        let split = Split::Windows { tokens: vec![0; 100], context: CONTEXT };
        let shifts = |seed| -> Vec<usize> { (0..50).map(|e| split.shift(seed, e)).collect() };
        assert_eq!(shifts(1), shifts(1));
        assert_ne!(shifts(1), shifts(2));
        assert!((0..CONTEXT).all(|shift| shifts(1).contains(&shift)));
    }

    #[test]
    fn the_shortest_text_is_as_the_error_says() {
        let directory = TestDirectory::new();
        let short = directory.file("short", alphabet(20 * CONTEXT - 1));
        let message = read(&short, CONTEXT).unwrap_err().to_string();
        assert!(message.contains("159 characters, expected at least 160"), "{message}");
        assert!(read(&directory.file("enough", alphabet(20 * CONTEXT)), CONTEXT).is_ok());
    }

    #[test]
    fn what_is_no_text_is_refused() {
        let directory = TestDirectory::new();
        let broken = directory.file("broken", b"abc\xff\xfe");
        let message = read(&broken, CONTEXT).unwrap_err().to_string();
        assert!(message.contains("no valid character at byte 3"), "{message}");
        let missing = read(&directory.path().join("missing"), CONTEXT).unwrap_err();
        assert!(matches!(missing, DataError::Read { .. }));
        let empty = read(&directory.file("empty", ""), CONTEXT).unwrap_err();
        assert!(matches!(empty, DataError::TooShort { found: 0, .. }));
        assert!(matches!(read(&broken, 0), Err(DataError::Zero { .. })));
    }
}
