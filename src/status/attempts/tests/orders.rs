//! Every order of accesses to the attempts of a rank.

use std::sync::Arc;

use loom::thread;

use super::super::*;

fn attempts() -> Arc<Attempts> {
    let piece = || Piece { number: AtomicU64::new(0), rest: AtomicU64::new(0), words: [AtomicU64::new(0)] };
    Arc::new(Attempts { joined: AtomicU64::new(0), pieces: [piece(), piece()] })
}

fn number(piece: u32) -> PieceNumber {
    PieceNumber { attempt: 1, piece }
}

/// Two ranks that see a third differently still agree on what it is.
#[test]
fn all_ranks_read_the_same_membership() {
    loom::model(|| {
        let attempts = attempts();
        let theirs = Arc::clone(&attempts);
        let joins = thread::spawn(move || theirs.join(1));
        let theirs = Arc::clone(&attempts);
        let excludes = thread::spawn(move || {
            theirs.exclude();
            theirs.is_member(1)
        });
        let early = attempts.is_member(1);
        let (has_joined, is_member) = (joins.join().unwrap(), excludes.join().unwrap());
        assert_eq!(is_member, Some(has_joined));
        assert!(early.is_none_or(|early| early == has_joined));
    });
}

/// A reader gets a piece whole, or not at all.
#[test]
fn a_piece_is_read_whole_or_not_at_all() {
    loom::model(|| {
        let attempts = attempts();
        let theirs = Arc::clone(&attempts);
        let gives = thread::spawn(move || [1, 3].map(|piece| theirs.give(number(piece), &[piece as u8; 8])));
        for piece in [1, 3] {
            if let Some(given) = attempts.given(number(piece)) {
                assert_eq!(given, (vec![piece as u8; 8], 8));
            }
        }
        gives.join().unwrap();
    });
}

/// A rank that learns of a next attempt finds the values that the sender gave to the previous one.
#[test]
fn a_piece_comes_before_the_end_of_its_attempt() {
    loom::model(|| {
        let attempts = attempts();
        let theirs = Arc::clone(&attempts);
        let gives = thread::spawn(move || {
            assert!(theirs.join(1));
            theirs.give(number(1), &[1; 8]);
            assert!(theirs.join(2));
        });
        if attempts.has_ended(1) {
            assert!(attempts.given(number(1)).is_some());
        }
        gives.join().unwrap();
    });
}
