//! Loom models: every interleaving of accesses to the attempts of a rank.

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

/// Two ranks that join and exclude a third concurrently agree on its membership.
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

/// A reader gets a whole piece or none.
#[test]
fn no_torn_piece_is_read() {
    loom::model(|| {
        let attempts = attempts();
        let theirs = Arc::clone(&attempts);
        let publisher =
            thread::spawn(move || [1, 3].map(|piece| theirs.publish(number(piece), &[piece as u8; 8])));
        for piece in [1, 3] {
            if let Some(piece_and_length) = attempts.published(number(piece)) {
                assert_eq!(piece_and_length, (vec![piece as u8; 8], 8));
            }
        }
        publisher.join().unwrap();
    });
}

/// A rank that observes the next attempt also observes the values that the sender published in the previous one.
#[test]
fn piece_is_visible_before_the_end_of_its_attempt() {
    loom::model(|| {
        let attempts = attempts();
        let theirs = Arc::clone(&attempts);
        let publisher = thread::spawn(move || {
            assert!(theirs.join(1));
            theirs.publish(number(1), &[1; 8]);
            assert!(theirs.join(2));
        });
        if attempts.has_ended(1) {
            assert!(attempts.published(number(1)).is_some());
        }
        publisher.join().unwrap();
    });
}
