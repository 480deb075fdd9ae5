//! Reads several files at a time, and interleaves their elements.

use std::iter;
use std::mem;
use std::sync::Arc;

use super::ahead::Ahead;
use super::epochs::Item;
use super::watch::{Counters, Watch};
use super::{DataError, Depth, Pipeline};

type Open<P, U> = Arc<dyn Fn(P) -> Result<Pipeline<U>, DataError> + Send + Sync>;

/// The open files, each with a thread that prefetches, and those still to be opened.
pub(super) struct Interleave<P, U> {
    files: Pipeline<P>,
    at_once: usize,
    open: Open<P, U>,
    streams: Vec<Pipeline<U>>,
    /// Set once the end of the epoch has been read, so that all its files are open.
    ends_epoch: bool,
    /// The next file in round-robin order.
    turn: usize,
    counters: Arc<Counters>,
}

impl<P: Send + 'static, U: Send + 'static> Interleave<P, U> {
    pub(super) fn new(files: Pipeline<P>, at_once: usize, open: Open<P, U>, counters: Arc<Counters>) -> Self {
        Self { files, at_once, open, streams: vec![], ends_epoch: false, turn: 0, counters }
    }

    /// Opens `file` on a new thread, and returns its elements.
    fn stream(&self, file: P) -> Pipeline<U> {
        let open = Arc::clone(&self.open);
        let opened = iter::once_with(move || open(file));
        let elements = opened.flat_map(|file| file.unwrap_or_else(|error| Pipeline::new([Err(error)])));
        let ahead = Ahead::prefetch(Pipeline::new(elements), Depth::Auto, Arc::clone(&self.counters));
        Pipeline::stage(ahead, Watch::default())
    }
}

impl<P: Send + 'static, U: Send + 'static> Iterator for Interleave<P, U> {
    type Item = Result<Item<U>, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            // Opens the first files of an epoch, or the one that replaces a file that has ended.
            let mut place = self.turn;
            while self.streams.len() < self.at_once && !self.ends_epoch {
                match self.files.next_item() {
                    Some(Ok(Item::Element(file))) => {
                        let stream = self.stream(file);
                        self.streams.insert(place, stream);
                        place += 1;
                    }
                    Some(Ok(Item::EndOfEpoch)) => self.ends_epoch = true,
                    Some(Err(error)) => return Some(Err(error)),
                    None => break,
                }
            }
            if self.turn >= self.streams.len() {
                self.turn = 0;
            }
            let Some(stream) = self.streams.get_mut(self.turn) else {
                // All files of this epoch are exhausted.
                return mem::take(&mut self.ends_epoch).then_some(Ok(Item::EndOfEpoch));
            };
            if let Some(element) = stream.next() {
                self.turn += 1;
                return Some(element.map(Item::Element));
            }
            self.streams.remove(self.turn);
        }
    }
}
