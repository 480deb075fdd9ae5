//! Reads several files at a time, and interleaves their elements.

use std::iter;
use std::sync::Arc;

use super::ahead::Ahead;
use super::epochs::Item;
use super::watch::{Counters, Watch};
use super::{DataError, Depth, Pipeline};

/// Returns the elements of the files in round-robin order. Keeps `at_once` files open, each with a thread that prefetches.
pub(super) fn interleave<P: Send + 'static, U: Send + 'static>(
    mut files: Pipeline<P>,
    at_once: usize,
    open: impl Fn(P) -> Result<Pipeline<U>, DataError> + Send + Sync + 'static,
    counters: Arc<Counters>,
) -> impl Iterator<Item = Result<Item<U>, DataError>> + Send {
    let open = Arc::new(open);
    let start = move |file| {
        let open = Arc::clone(&open);
        let opened = iter::once_with(move || open(file));
        let elements = opened.flat_map(|file| file.unwrap_or_else(|error| Pipeline::new([Err(error)])));
        let ahead = Ahead::prefetch(Pipeline::new(elements), Depth::Auto, Arc::clone(&counters));
        Pipeline::stage(ahead, Watch::default())
    };
    // The open files, and the next one in round-robin order.
    let (mut streams, mut turn) = (Vec::<Pipeline<U>>::new(), 0);
    // The end of the epoch, or an error of the list. It follows the elements of the open files.
    let mut end = None;
    iter::from_fn(move || {
        loop {
            // Opens the first files of an epoch, or the one that replaces a file that has ended.
            let mut place = turn;
            while streams.len() < at_once && end.is_none() {
                match files.next_item() {
                    Some(Ok(Item::Element(file))) => {
                        streams.insert(place, start(file));
                        place += 1;
                    }
                    Some(Ok(Item::EndOfEpoch)) => end = Some(Ok(Item::EndOfEpoch)),
                    Some(Err(error)) => end = Some(Err(error)),
                    None => break,
                }
            }
            if turn >= streams.len() {
                turn = 0;
            }
            let Some(stream) = streams.get_mut(turn) else { return end.take() };
            if let Some(element) = stream.next() {
                turn += 1;
                return Some(element.map(Item::Element));
            }
            streams.remove(turn);
        }
    })
}
