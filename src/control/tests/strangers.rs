//! Connections from outside the job.

use super::network::Network;
use super::{Happening, Queue, Rank, Time};
use crate::control::handshake::{Handshake, Reply};
use crate::control::message::{Claim, Message};

/// Strangers that connect to the members without knowing the secret.
#[derive(Debug)]
pub(super) struct Strangers {
    random: fastrand::Rng,
    own: Rank,
    /// Messages of the handshakes of members.
    overheard: Vec<Vec<u8>>,
}

impl Strangers {
    /// Strangers that connect at random times to members below `ranks`.
    pub(super) fn new(seed: u64, ranks: usize, queue: &mut Queue) -> Self {
        let mut random = fastrand::Rng::with_seed(!seed);
        let connections = if ranks == 0 { 0 } else { random.usize(1..40) };
        for _ in 0..connections {
            let latest_ms = [100, 5_000][random.usize(0..2)];
            let at = Time::from_millis(random.u64(0..latest_ms));
            queue.push(at, Rank::MAX, Happening::Dial(random.usize(0..ranks)));
        }
        Self { random, own: Rank::MAX, overheard: Vec::new() }
    }

    /// Somebody on the network reads what members send.
    pub(super) fn overhear(&mut self, bytes: &[u8]) {
        let has = |word: &[u8]| bytes.windows(word.len()).any(|part| part == word);
        if self.overheard.len() < 100 && (has(b"hello") || has(b"prove") || has(b"accept")) {
            self.overheard.push(bytes.to_vec());
        }
    }

    pub(super) fn handle(
        &mut self,
        now: Time,
        happening: Happening,
        network: &mut Network,
        queue: &mut Queue,
    ) {
        let Happening::Dial(to) = happening else { return };
        let [_, end] = network.open([self.own, to]);
        queue.push(now, to, Happening::Opened(end.1, None));
        let claim = Claim { from: self.random.usize(0..6), to, tag: u64::from_be_bytes(*b"watchdog") };
        let hello = || Handshake::connect(b"guess", claim, [1, 2]);
        let says: Vec<Vec<u8>> = match self.random.u8(0..6) {
            // Silent.
            0 => Vec::new(),
            1 => vec![b"GET / HTTP/1.1\r\n\r\n".to_vec()],
            2 => (0..10)
                .map(|_| (0..self.random.usize(1..300)).map(|_| self.random.u8(..)).collect())
                .collect(),
            // A byte at a time.
            3 => hello().1.to_bytes().into_iter().map(|byte| vec![byte]).collect(),
            4 => {
                let mut said = self.overheard.clone();
                self.random.shuffle(&mut said);
                said.sort_by_key(|bytes| bytes.windows(5).any(|part| part == b"prove"));
                said.dedup_by_key(|bytes| bytes.windows(5).any(|part| part == b"prove"));
                said
            }
            _ => {
                let (mut connects, hello) = hello();
                let prove = connects.handle(Message::Challenge { nonce: [0, 0] }, |_| Ok(()));
                let Reply::Send(prove) = prove else { unreachable!("it answers a challenge") };
                vec![hello.to_bytes(), prove.to_bytes()]
            }
        };
        let mut at = now;
        for bytes in says {
            at += Time::from_millis(self.random.u64(1..300));
            queue.push(at, to, Happening::Arrived(end.1, bytes, at));
        }
        if self.random.bool() {
            let at = at + Time::from_millis(self.random.u64(1..2_000));
            queue.push(at, to, Happening::Ended { link: end.1, is_timeout: false });
        }
    }
}
