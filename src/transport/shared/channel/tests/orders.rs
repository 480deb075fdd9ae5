//! All interleavings in which a sender and a receiver observe each other's writes.

use std::sync::Arc;

use bytemuck::Zeroable as _;
use loom::thread;

use super::super::*;

const MESSAGES: u64 = SLOTS + 1;

fn channel() -> Arc<Channel> {
    let slot = || Slot {
        number: AtomicU64::new(0),
        message: SharedCell::new(Message { digest: 0, acknowledged: 0, inline: [0; INLINE] }),
        payload: SharedCell::new([0; SHORT]),
    };
    Arc::new(Channel {
        released: CachePadded::new(AtomicU64::new(0)),
        headers: CachePadded::new(std::array::from_fn(|_| SharedCell::new(Header::numbered(0)))),
        slots: std::array::from_fn(|_| slot()),
    })
}

/// Waits until the receiver has released this many messages.
fn until_released(channel: &Channel, number: u64) {
    while channel.released() < number {
        thread::yield_now();
    }
}

fn until_arrived(channel: &Channel, number: u64) -> &Message {
    loop {
        if let Some(message) = channel.arrived(number) {
            return message;
        }
        thread::yield_now();
    }
}

/// Sends more messages than there are slots, so that one is reused.
fn messages_of(size_bytes: usize) {
    loom::model(move || {
        let channel = channel();
        let sender = {
            let channel = Arc::clone(&channel);
            thread::spawn(move || {
                for number in 1..=MESSAGES {
                    until_released(&channel, number.saturating_sub(SLOTS));
                    let stamp = Stamp { number, acknowledged: 0 };
                    channel.send_short(stamp, &Header::numbered(number), &vec![number as u8; size_bytes]);
                }
            })
        };
        for number in 1..=MESSAGES {
            let message = until_arrived(&channel, number);
            assert_eq!(message.digest, Header::numbered(number).digest());
            assert_eq!(channel.header(number).sequence(), number);
            assert_eq!(channel.payload(number, message, size_bytes), vec![number as u8; size_bytes]);
            channel.release(number);
        }
        sender.join().unwrap();
    });
}

#[test]
fn message_next_to_its_number_is_whole() {
    messages_of(8);
}

#[test]
fn message_in_its_slot_is_whole() {
    messages_of(INLINE + 1);
}

#[test]
fn lent_memory_returns_to_the_sender_after_release() {
    loom::model(|| {
        let (channel, buffer) = (channel(), Arc::new(SharedCell::new(1_u64)));
        let sender = {
            let (channel, buffer) = (Arc::clone(&channel), Arc::clone(&buffer));
            thread::spawn(move || {
                let stamp = Stamp { number: 1, acknowledged: 0 };
                channel.send_long(stamp, &Header::numbered(1), Location::zeroed());
                until_released(&channel, 1);
                // SAFETY: the receiver has released it, which loom verifies.
                buffer.with_mut(|buffer| unsafe { *buffer = 2 });
            })
        };
        until_arrived(&channel, 1);
        // SAFETY: the sender waits, which loom verifies.
        assert_eq!(buffer.with(|buffer| unsafe { *buffer }), 1);
        channel.release(1);
        sender.join().unwrap();
    });
}
