//! Attempts of ranks that are threads.

use super::*;

fn attempts() -> Attempts {
    let piece = || Piece {
        number: AtomicU64::new(0),
        rest: AtomicU64::new(0),
        words: std::array::from_fn(|_| AtomicU64::new(0)),
    };
    Attempts { joined: AtomicU64::new(0), pieces: [piece(), piece()] }
}

#[test]
fn exclusion_does_not_revoke_membership() {
    let attempts = attempts();
    assert_eq!(attempts.is_member(1), None);
    assert!(attempts.join(1) && !attempts.has_ended(1));
    attempts.exclude();
    assert_eq!((attempts.is_member(1), attempts.is_member(2)), (Some(true), Some(false)));
    assert!(attempts.has_ended(1) && !attempts.join(2));
    assert_eq!((attempts.is_member(1), attempts.is_member(2)), (Some(true), Some(false)));
}

#[test]
fn later_attempt_ends_an_earlier_one() {
    let attempts = attempts();
    assert!(attempts.join(1) && attempts.join(2));
    assert!(attempts.has_ended(1) && !attempts.has_ended(2));
}

#[test]
fn pieces_of_any_length_are_readable_until_replaced() {
    let attempts = attempts();
    let number = |attempt, piece| PieceNumber { attempt, piece };
    for length in [0, 1, 7, 8, 9, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1] {
        let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
        attempts.publish(number(3, 5), &bytes);
        let here = bytes[..length.min(PIECE_BYTES)].to_vec();
        assert_eq!(attempts.published(number(3, 5)), Some((here, length)));
    }
    attempts.publish(number(3, 6), &[1]);
    assert!(attempts.published(number(3, 5)).is_some());
    attempts.publish(number(3, 7), &[2]);
    assert_eq!((attempts.published(number(3, 5)), attempts.published(number(4, 7))), (None, None));
}
