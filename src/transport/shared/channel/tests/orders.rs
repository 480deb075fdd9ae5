//! All interleavings in which a sender and a receiver see each other's writes.

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
        taken: CachePadded::new(AtomicU64::new(0)),
        headers: CachePadded::new(std::array::from_fn(|_| SharedCell::new(Header::numbered(0)))),
        slots: std::array::from_fn(|_| slot()),
    })
}

/// Waits until the receiver has released this many messages.
fn until_taken(channel: &Channel, number: u64) {
    while channel.taken() < number {
        thread::yield_now();
    }
}

/// Waits for a message.
fn until_arrived(channel: &Channel, number: u64) -> &Message {
    loop {
        if let Some(message) = channel.arrived(number) {
            return message;
        }
        thread::yield_now();
    }
}

/// More messages than slots, so that one is reused.
fn messages_of(size_bytes: usize) {
    loom::model(move || {
        let channel = channel();
        let sender = {
            let channel = Arc::clone(&channel);
            thread::spawn(move || {
                for number in 1..=MESSAGES {
                    until_taken(&channel, number.saturating_sub(SLOTS));
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
            channel.take(number);
        }
        sender.join().unwrap();
    });
}

#[test]
fn a_message_is_whole_beside_its_number() {
    messages_of(8);
}

#[test]
fn a_message_is_whole_in_its_slot() {
    messages_of(INLINE + 1);
}

#[test]
fn what_a_message_points_to_is_the_senders_again_once_it_is_taken() {
    loom::model(|| {
        let (channel, buffer) = (channel(), Arc::new(SharedCell::new(1_u64)));
        let sender = {
            let (channel, buffer) = (Arc::clone(&channel), Arc::clone(&buffer));
            thread::spawn(move || {
                let stamp = Stamp { number: 1, acknowledged: 0 };
                channel.send_long(stamp, &Header::numbered(1), Location::zeroed());
                until_taken(&channel, 1);
                // SAFETY: the receiver is done with it, which is what loom is to find out.
                buffer.with_mut(|buffer| unsafe { *buffer = 2 });
            })
        };
        until_arrived(&channel, 1);
        // SAFETY: the sender waits, which is what loom is to find out.
        assert_eq!(buffer.with(|buffer| unsafe { *buffer }), 1);
        channel.take(1);
        sender.join().unwrap();
    });
}
