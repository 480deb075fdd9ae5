//! Loom models: every order in which other ranks can observe the records of a rank.

use std::sync::Arc;

use loom::thread;

use super::super::*;

fn ring() -> Ring {
    let word = || AtomicU64::new(0);
    let slot = || Slot {
        number: word(),
        sequence: word(),
        count: word(),
        codes: word(),
        label: word(),
        began: word(),
        ended: word(),
        progress: word(),
    };
    Ring { begun: CachePadded::new(word()), slots: std::array::from_fn(|_| slot()) }
}

/// The third call is written over the first while the first may be read.
#[test]
fn no_torn_call_is_read() {
    loom::model(|| {
        let ring = Arc::new(ring());
        let writer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                for call in 1..=RECORDS as u64 + 1 {
                    ring.begin(call, 10 * call, 0, 0, (0, false));
                }
            })
        };
        for number in 1..=RECORDS as u64 + 1 {
            if let Some(noted) = ring.read(number) {
                assert_eq!((noted.sequence, noted.count), (number, 10 * number));
            }
        }
        writer.join().unwrap();
    });
}
