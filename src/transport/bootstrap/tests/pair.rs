//! A bootstrap of two threads, for tests.

use std::sync::mpsc::{Receiver, Sender, channel};

use unisono_collectives::Rank;

use super::super::Bootstrap;

/// One of two ranks, and channels to the other.
pub(in crate::transport) struct Pair(
    pub(in crate::transport) Rank,
    pub(in crate::transport) Sender<Vec<u8>>,
    pub(in crate::transport) Receiver<Vec<u8>>,
);

impl Bootstrap for Pair {
    fn rank(&self) -> Rank {
        self.0
    }

    fn ranks(&self) -> usize {
        2
    }

    fn all_gather(&mut self, own: &[u8]) -> crate::error::Result<Vec<Vec<u8>>> {
        self.1.send(own.to_vec()).unwrap();
        let mut all = vec![self.2.recv().unwrap()];
        all.insert(self.0, own.to_vec());
        Ok(all)
    }
}

pub(in crate::transport) fn pair() -> [Pair; 2] {
    let ((to_1, from_0), (to_0, from_1)) = (channel(), channel());
    [Pair(0, to_1, from_1), Pair(1, to_0, from_0)]
}
