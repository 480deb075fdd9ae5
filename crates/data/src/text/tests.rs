//! Tests of texts, their tokens and their windows.

use super::*;
use crate::batch::Inputs;
use crate::testing::TestDirectory;

fn read(file: &Path, context: usize) -> Result<Dataset, DataError> {
    super::read(file, &Options { context, ..Options::default() })
}

const CONTEXT: usize = 8;

/// Returns a text of these codes, which are their own tokens.
fn of_codes(codes: Vec<u32>) -> StoredText {
    let (range, tokens) = (0..codes.len(), (0..100).collect());
    StoredText { codes: Arc::new(Numbers::Memory(codes)), range, context: CONTEXT, tokens }
}

fn alphabet(length: usize) -> String {
    ('a'..='z').cycle().take(length).collect()
}

#[test]
fn tokens_index_the_sorted_vocabulary() {
    let directory = TestDirectory::new();
    let data = read(&directory.file("text", "hé hello".repeat(10)), 1).unwrap();
    let Kind::Text { vocabulary, .. } = data.kind else { panic!("not a text") };
    assert_eq!(vocabulary, [' ', 'e', 'h', 'l', 'o', 'é']);
    let batch = data.train.batch(&[0, 1, 2, 3, 4, 5, 6, 7], Pass::Evaluation).unwrap();
    assert_eq!(batch.inputs, Inputs::Tokens(vec![2, 5, 0, 2, 1, 3, 3, 4]));
}

#[test]
fn targets_are_the_inputs_shifted_by_one_character() {
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
        let split = of_codes(vec![0; length]);
        assert!(!split.is_empty());
        let last = (0..).find(|&epoch| split.shift(1, epoch) == CONTEXT - 1).unwrap();
        split.batch(&[split.len() - 1], Pass::Training { seed: 1, epoch: last }).unwrap();
    }
}

#[test]
fn shifts_depend_only_on_seed_and_epoch() {
    let split = of_codes(vec![0; 100]);
    let shifts = |seed| -> Vec<usize> { (0..50).map(|e| split.shift(seed, e)).collect() };
    assert_eq!(shifts(1), shifts(1));
    assert_ne!(shifts(1), shifts(2));
    assert!((0..CONTEXT).all(|shift| shifts(1).contains(&shift)));
}

#[test]
fn the_shortest_text_has_the_length_in_the_error() {
    let directory = TestDirectory::new();
    let short = directory.file("short", alphabet(20 * CONTEXT - 1));
    let message = read(&short, CONTEXT).unwrap_err().to_string();
    assert!(message.contains("159 characters, expected at least 160"), "{message}");
    assert!(read(&directory.file("enough", alphabet(20 * CONTEXT)), CONTEXT).is_ok());
}

#[test]
fn invalid_texts_are_refused() {
    let directory = TestDirectory::new();
    let broken = directory.file("broken", b"abc\xff\xfe");
    let message = read(&broken, CONTEXT).unwrap_err().to_string();
    assert!(message.contains("no valid character at byte 3"), "{message}");
    let missing = read(&directory.path().join("missing"), CONTEXT).unwrap_err();
    assert!(matches!(missing, DataError::Read { .. }));
    let empty = read(&directory.file("empty", ""), CONTEXT).unwrap_err();
    assert!(empty.to_string().contains("is too short: 0 characters"), "{empty}");
    assert!(read(&broken, 0).unwrap_err().to_string().starts_with("the context is 0: "));
}

/// Tests characters of one to four bytes, and a limit within the second of three files.
#[test]
fn a_text_larger_than_memory_has_the_same_batches() {
    let directory = TestDirectory::new();
    let mixed: String = ["a", "é", "€", "\u{10ffff}", "b"].iter().cycle().take(3000).copied().collect();
    let joined = directory.path().join("{ascii,mixed,ascii2}");
    let cases = [
        (directory.file("ascii", alphabet(3000)), 0),
        (directory.file("mixed", &mixed), 0),
        (joined.clone(), 0),
        (joined, 12_000),
    ];
    directory.file("ascii2", alphabet(777));
    for (path, in_memory_bytes) in cases {
        let memory = read(&path, 13).unwrap();
        let options = Options { context: 13, in_memory_bytes, ..Options::default() };
        let stored = super::read(&path, &options).unwrap();
        assert!(format!("{:?}", stored.train).contains("ByteFile"));
        assert_eq!(stored.kind, memory.kind);
        assert_eq!(stored.fingerprint().unwrap(), memory.fingerprint().unwrap());
        let tokens: Vec<_> = (0..30).map(|token| 100 - token).collect();
        for (stored, memory) in [(stored.train, memory.train), (stored.test, memory.test)] {
            let all: Vec<_> = (0..memory.len()).rev().collect();
            for pass in [Pass::Training { seed: 1, epoch: 2 }, Pass::Evaluation] {
                let batch = |split: &Arc<dyn Split>| split.batch(&all, pass).unwrap();
                assert_eq!(batch(&stored), batch(&memory));
                assert_eq!(batch(&stored.renumbered(&tokens)), batch(&memory.renumbered(&tokens)));
            }
        }
    }
}

#[test]
fn a_text_that_changes_during_a_run_keeps_its_samples() {
    let directory = TestDirectory::new();
    let path = directory.file("text", alphabet(1000));
    for in_memory_bytes in [0, 1000, 1 << 30] {
        let options = Options { context: CONTEXT, in_memory_bytes, ..Options::default() };
        let data = super::read(&path, &options).unwrap();
        let batch = || data.train.batch(&[0, 111], Pass::Evaluation).unwrap();
        let before = batch();
        for now in ["A".repeat(1000).into_bytes(), vec![0xff; 1000], vec![]] {
            directory.file("text", now);
            assert_eq!(batch(), before);
        }
        directory.file("text", alphabet(1000));
    }
}

#[test]
fn characters_may_cross_a_block_boundary() {
    let directory = TestDirectory::new();
    for before in 0..4 {
        let text = "x".repeat(BLOCK - before) + "\u{10ffff}" + &"y".repeat(1000);
        let data = read(&directory.file("text", &text), 1).unwrap();
        assert_eq!(data.train.len() + data.test.len() + 2, text.chars().count());
        let cut = text.as_bytes()[..BLOCK - before + 2].to_vec();
        let message = read(&directory.file("cut", cut), 1).unwrap_err().to_string();
        assert!(message.contains(&format!("no valid character at byte {}", BLOCK - before)), "{message}");
    }
}

#[test]
fn windows_move_in_training_and_stay_in_evaluation() {
    let split = of_codes((0..100).collect());
    for epoch in 0..20 {
        let first = split.shift(3, epoch) as u32;
        let batch = split.batch(&[0], Pass::Training { seed: 3, epoch }).unwrap();
        assert_eq!(batch.inputs, Inputs::Tokens((first..first + 8).collect()));
        assert_eq!(batch.targets, (first + 1..first + 9).collect::<Vec<_>>());
    }
    let batch = split.batch(&[0], Pass::Evaluation).unwrap();
    assert_eq!(batch.inputs, Inputs::Tokens((0..8).collect()));
}
