//! All interleavings in which ranks observe that a buffer is opened, released and withdrawn.

use std::sync::Arc;

use bytemuck::Zeroable as _;
use loom::thread;

use super::super::super::channel::Content;
use super::super::*;
use crate::memory::Location;
use crate::sync::SharedCell;
use crate::transport::Header;

fn conditions() -> Arc<[Condition; 2]> {
    let condition = || Condition {
        withdrawn: AtomicBool::new(false),
        inside: CachePadded::new(AtomicBool::new(false)),
        opened: Post::new(Content { header: Header::numbered(0), location: Location::zeroed() }),
        closed: CachePadded::new(AtomicU64::new(0)),
    };
    Arc::new([condition(), condition()])
}

#[test]
fn no_rank_accesses_withdrawn_memory() {
    loom::model(|| {
        let (conditions, memory) = (conditions(), Arc::new(SharedCell::new(1_u64)));
        let visitor = {
            let (conditions, memory) = (Arc::clone(&conditions), Arc::clone(&memory));
            thread::spawn(move || {
                let [owner, own] = &*conditions;
                if let Some(_inside) = own.enter(std::iter::once(owner)) {
                    // SAFETY: the owner waits until this rank has left, which loom verifies.
                    assert_eq!(memory.with(|memory| unsafe { *memory }), 1);
                }
            })
        };
        let [owner, other] = &*conditions;
        owner.withdraw(std::iter::once((other, || false)), || true);
        // SAFETY: no thread is inside, which loom verifies.
        memory.with_mut(|memory| unsafe { *memory = 2 });
        visitor.join().unwrap();
    });
}

#[test]
fn post_is_read_whole_and_replaced_only_after_it_was_read() {
    loom::model(|| {
        let conditions = conditions();
        let poster = {
            let conditions = Arc::clone(&conditions);
            thread::spawn(move || {
                let [own, reader] = &*conditions;
                for number in 1..=2 {
                    while reader.closed.load(Ordering::Acquire) < number - 1 {
                        thread::yield_now();
                    }
                    let content = Content { header: Header::numbered(number), location: Location::zeroed() };
                    // SAFETY: only this thread posts, and the reader has read the previous content, which loom verifies.
                    unsafe { own.opened.post(number, content) };
                }
            })
        };
        let [other, own] = &*conditions;
        for number in 1..=2 {
            let content = loop {
                if let Some(content) = other.opened.read(number) {
                    break content;
                }
                thread::yield_now();
            };
            assert_eq!(content.header.sequence(), number);
            own.closed.store(number, Ordering::Release);
            // While it waits for others to close the pass, it checks only posts of the next one.
            if let Some(next) = other.opened.read(number + 1) {
                assert_eq!(next.header.sequence(), number + 1);
            }
        }
        poster.join().unwrap();
    });
}
