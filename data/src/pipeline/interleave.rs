//! Reads several files at a time, and interleaves their elements.

use std::iter;
use std::sync::Arc;

use super::ahead::Ahead;
use super::watch::{Counters, Watch};
use super::{Clock, DataError, Depth, Pipeline};

/// The open files, each with a thread that prefetches, and those still to be opened.
pub(super) struct Interleave<P, U, F> {
    files: Pipeline<P>,
    at_once: usize,
    open: Arc<F>,
    streams: Vec<Pipeline<U>>,
    has_begun: bool,
    /// The next file in round-robin order.
    turn: usize,
    clock: Clock,
    counters: Arc<Counters>,
}

impl<P, U, F> Interleave<P, U, F>
where
    P: Send + 'static,
    U: Send + 'static,
    F: Fn(P) -> Result<Pipeline<U>, DataError> + Send + Sync + 'static,
{
    pub(super) fn new(
        files: Pipeline<P>,
        at_once: usize,
        open: F,
        clock: Clock,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            files,
            at_once,
            open: Arc::new(open),
            streams: vec![],
            has_begun: false,
            turn: 0,
            clock,
            counters,
        }
    }

    /// Opens `file` on a new thread, and returns its elements.
    fn stream(&self, file: P) -> Pipeline<U> {
        let open = Arc::clone(&self.open);
        let (mut file, mut opened) = (Some(file), None);
        let elements = Pipeline::new(iter::from_fn(move || {
            if let Some(file) = file.take() {
                match open(file) {
                    Ok(elements) => opened = Some(elements),
                    Err(error) => return Some(Err(error)),
                }
            }
            opened.as_mut()?.next()
        }));
        let ahead = Ahead::prefetch(elements, Depth::Auto, self.clock.clone(), Arc::clone(&self.counters));
        Pipeline::stage(ahead, self.clock.clone(), Watch::default())
    }
}

impl<P, U, F> Iterator for Interleave<P, U, F>
where
    P: Send + 'static,
    U: Send + 'static,
    F: Fn(P) -> Result<Pipeline<U>, DataError> + Send + Sync + 'static,
{
    type Item = Result<U, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.has_begun {
            match self.files.next().transpose() {
                Ok(Some(file)) => self.streams.push(self.stream(file)),
                Ok(None) => self.has_begun = true,
                Err(error) => return Some(Err(error)),
            }
            self.has_begun |= self.streams.len() == self.at_once;
        }
        loop {
            if self.turn >= self.streams.len() {
                self.turn = 0;
            }
            if let Some(element) = self.streams.get_mut(self.turn)?.next() {
                self.turn += 1;
                return Some(element);
            }
            // The next file replaces the one that has ended.
            match self.files.next().transpose() {
                Ok(Some(file)) => self.streams[self.turn] = self.stream(file),
                Ok(None) => drop(self.streams.remove(self.turn)),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
