//! Tests of the output of a pipeline, its order, and its end.

use std::collections::BTreeSet;
use std::panic::{self, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::*;

const ALL_THREADS: [Threads; 4] = [Threads::Fixed(1), Threads::Fixed(2), Threads::Fixed(5), Threads::Auto];

fn numbers(count: u64) -> Pipeline<u64> {
    Pipeline::of(0..count)
}

fn collect<T: Send + 'static>(elements: Pipeline<T>) -> Vec<T> {
    elements.collect::<Result<_, _>>().unwrap()
}

/// Takes longer for some numbers than for others, so that threads overtake each other.
fn slow(number: u64) -> u64 {
    if number % 7 == 3 {
        thread::sleep(Duration::from_millis(1));
    }
    number * number
}

/// Returns the numbers from 0, with an error in place of this one.
fn failing(at: u64) -> Pipeline<u64> {
    Pipeline::new(
        (0..).map(move |number| if number == at { Err(DataError::other("bad")) } else { Ok(number) }),
    )
}

/// Returns the elements of a pipeline before its error, and the error.
fn until_error<T: Send + 'static>(mut elements: Pipeline<T>) -> (Vec<T>, String) {
    let mut before = vec![];
    loop {
        match elements.next().expect("there is an error") {
            Ok(element) => before.push(element),
            Err(error) => {
                assert!(elements.next().is_none(), "nothing follows an error");
                return (before, error.to_string());
            }
        }
    }
}

#[test]
fn a_map_keeps_the_order_and_every_element() {
    for threads in ALL_THREADS {
        let mapped = collect(numbers(500).map(threads, |number| Ok(slow(number))).prefetch(Depth::Auto));
        assert!(mapped.into_iter().eq((0..500).map(|number| number * number)), "{threads:?}");
        assert!(collect(numbers(0).map(threads, Ok)).is_empty());
    }
}

#[test]
fn all_batches_but_the_last_are_full() {
    assert_eq!(collect(numbers(7).batch(3)), [vec![0, 1, 2], vec![3, 4, 5], vec![6]]);
    assert_eq!(collect(numbers(6).batch(3)).len(), 2);
    assert!(collect(numbers(0).batch(3)).is_empty());
}

#[test]
fn a_shuffle_is_determined_by_seed_and_epoch() {
    let shuffled = |seed, epoch| collect(numbers(100).shuffle(16, seed, epoch));
    let first = shuffled(1, 0);
    assert_eq!(first, shuffled(1, 0));
    assert_ne!(first, shuffled(1, 1));
    assert_ne!(first, shuffled(2, 0));
    assert_eq!(first.iter().copied().collect::<BTreeSet<_>>().len(), 100);
    for (place, &number) in (0..).zip(&first) {
        assert!(number < place + 16, "{number} at {place}");
    }
    assert_eq!(collect(numbers(9).shuffle(1, 1, 0)), collect(numbers(9)));
}

#[test]
fn repeat_builds_each_epoch_from_its_number() {
    let epochs = |threads| {
        let epoch = move |epoch| Ok(numbers(20).map(threads, Ok).shuffle(20, 1, epoch));
        collect(Pipeline::repeat(3..6, epoch).prefetch(Depth::Fixed(4)))
    };
    let all = epochs(Threads::Fixed(3));
    assert_eq!(all, epochs(Threads::Auto));
    for (epoch, of_epoch) in (3..).zip(all.chunks(20)) {
        assert_eq!(of_epoch, collect(numbers(20).shuffle(20, 1, epoch)));
    }
    let refused = Pipeline::repeat(0.., |epoch| match epoch {
        2 => Err(DataError::other("no epoch 2")),
        _ => Ok(numbers(2)),
    });
    assert_eq!(until_error(refused), (vec![0, 1, 0, 1], "no epoch 2".into()));
}

#[test]
fn files_are_interleaved_round_robin() {
    // File f has f elements; an empty file is skipped.
    let open = |file: u64| {
        Ok(Pipeline::of((0..file).map(move |element| {
            slow(element);
            10 * file + element
        })))
    };
    let two = collect(Pipeline::of([3, 2, 0, 1, 2]).interleave(2, open));
    assert_eq!(two, [30, 20, 31, 21, 32, 10, 20, 21]);
    let one = collect(Pipeline::of([3, 0, 2]).interleave(1, open));
    assert_eq!(one, [30, 31, 32, 20, 21]);
    for at_once in [3, 100] {
        let all = collect(Pipeline::of(0..20).interleave(at_once, open));
        assert_eq!(all.len(), 190);
        assert_eq!(all, collect(Pipeline::of(0..20).interleave(at_once, open)));
        let each = all.into_iter().collect::<BTreeSet<_>>();
        let expected: BTreeSet<_> = (0..20).flat_map(|file| (0..file).map(move |e| 10 * file + e)).collect();
        assert_eq!(each, expected);
    }
    assert!(collect(Pipeline::of([]).interleave(2, open)).is_empty());
}

#[test]
fn an_error_of_a_file_keeps_its_position() {
    let open = |file: u64| match file {
        0 => Ok(numbers(9)),
        1 => Ok(failing(2)),
        _ => Err(DataError::other("cannot open")),
    };
    let read = |files: [u64; 3], at_once| until_error(Pipeline::of(files).interleave(at_once, open));
    assert_eq!(read([0, 1, 2], 2), (vec![0, 0, 1, 1, 2], "bad".into()));
    assert_eq!(read([0, 2, 1], 2), (vec![0], "cannot open".into()));
    let list = Pipeline::new([Ok(0), Err(DataError::other("no list"))]);
    assert_eq!(until_error(list.interleave(1, open)), ((0..9).collect(), "no list".into()));
    // An error of the list follows the elements of all files before it.
    let list = Pipeline::new([Ok(3), Ok(1), Err(DataError::other("no list"))]);
    let read = list.interleave(2, |count| Ok(numbers(count)));
    assert_eq!(until_error(read), (vec![0, 0, 1, 2], "no list".into()));
}

#[test]
fn shards_cover_every_element_once() {
    for ranks in [1, 2, 3, 7] {
        let shards: Vec<_> = (0..ranks).map(|rank| collect(numbers(20).shard(rank, ranks))).collect();
        for (rank, shard) in shards.iter().enumerate() {
            assert!(shard.iter().all(|&number| number as usize % ranks == rank));
        }
        let all: BTreeSet<_> = shards.iter().flatten().collect();
        assert_eq!((all.len(), shards.iter().map(Vec::len).sum::<usize>()), (20, 20));
    }
    assert_eq!(until_error(failing(3).shard(1, 2)), (vec![1], "bad".into()));
}

#[test]
fn skip_and_take_count_elements() {
    assert_eq!(collect(numbers(9).skip(3).take(4)), [3, 4, 5, 6]);
    assert!(collect(numbers(3).skip(4)).is_empty());
    // The next epoch is whole.
    let mut epochs = Pipeline::repeat(0..2, |_| Ok(numbers(3))).skip(4);
    assert_eq!([epochs.epoch().count(), epochs.epoch().count()], [0, 3]);
    assert_eq!(collect(numbers(3).take(4)).len(), 3);
    assert_eq!(until_error(failing(2).skip(4)), (vec![], "bad".into()));
    // Later elements are not requested.
    assert_eq!(collect(failing(2).take(2)), [0, 1]);
}

#[test]
fn errors_keep_their_position_and_end_the_pipeline() {
    for threads in ALL_THREADS {
        let odd =
            move |number| if number > 40 { Err(DataError::other("too large")) } else { Ok(slow(number)) };
        let (before, error) = until_error(numbers(500).map(threads, odd).prefetch(Depth::Auto));
        assert_eq!((before.len(), error.as_str()), (41, "element 41: too large"));
        let (before, error) = until_error(failing(20).map(threads, odd).batch(6).prefetch(Depth::Auto));
        assert_eq!((before.len(), error.as_str()), (3, "bad"));
    }
}

#[test]
fn a_panic_resumes_in_the_consumer() {
    let said = |pipeline: fn() -> Pipeline<u64>| {
        let (sender, receiver) = mpsc::channel();
        let panic = catch_unwind(|| {
            for element in pipeline() {
                sender.send(element.unwrap()).unwrap();
            }
        });
        drop(sender);
        let message = panic.unwrap_err().downcast::<String>().expect("a message");
        (receiver.into_iter().count(), *message)
    };
    let in_map = || {
        numbers(50)
            .map(Threads::Fixed(3), |number| {
                assert!(number != 9, "number {number} burst");
                Ok(number)
            })
            .prefetch(Depth::Fixed(2))
    };
    assert_eq!(said(in_map), (9, "number 9 burst".into()));
    let in_source = || {
        let source = (0..50).inspect(|number| assert!(*number != 9, "number {number} burst"));
        Pipeline::of(source).map(Threads::Fixed(3), Ok).interleave(1, |number| Ok(Pipeline::of([number])))
    };
    assert_eq!(said(in_source), (9, "number 9 burst".into()));
    // Unisono's hook takes the text from the thread of the rank.
    let (own, (sender, receiver)) = (thread::current().id(), mpsc::channel());
    panic::set_hook(Box::new(move |panic| {
        let text = panic.payload_as_str().unwrap_or_default().to_owned();
        let _ = sender.send((thread::current().id() == own, text));
    }));
    said(in_map);
    let _ = panic::take_hook();
    let on_own: Vec<_> = receiver.into_iter().filter(|(is_own, _)| *is_own).collect();
    assert_eq!(on_own, [(true, "number 9 burst".to_owned())]);
}

#[test]
fn no_element_follows_a_panic() {
    let mut elements = numbers(50).map(Threads::Fixed(2), |number| {
        assert!(number != 1, "burst");
        Ok(number)
    });
    assert!(matches!(elements.next(), Some(Ok(0))));
    let panic = catch_unwind(std::panic::AssertUnwindSafe(|| elements.next()));
    assert!(panic.is_err());
    assert!(elements.next().is_none());
}

#[test]
fn threads_end_with_their_pipeline() {
    // All parts of a pipeline that run on threads hold this.
    let held = Arc::new(());
    for taken in [0, 1, 40] {
        let (in_source, in_map, in_open) = (Arc::clone(&held), Arc::clone(&held), Arc::clone(&held));
        let endless = Pipeline::of((0_u64..).inspect(move |_| drop(Arc::clone(&in_source))));
        let mut elements = endless
            .interleave(3, move |number| {
                let held = Arc::clone(&in_open);
                Ok(Pipeline::of((0..number + 5).inspect(move |_| drop(Arc::clone(&held)))))
            })
            .map(Threads::Fixed(3), move |number| {
                let _held = &in_map;
                Ok(number)
            })
            .batch(2)
            .prefetch(Depth::Fixed(3));
        assert_eq!(elements.by_ref().take(taken).count(), taken);
        if taken == 40 {
            // Long enough for every buffer to fill.
            thread::sleep(Duration::from_millis(20));
        }
        drop(elements);
        assert_eq!(Arc::strong_count(&held), 1, "after {taken} elements");
    }
    let in_map = Arc::clone(&held);
    let mut failing = failing(3).map(Threads::Auto, move |number| {
        let _held = &in_map;
        Ok(number)
    });
    assert_eq!(failing.by_ref().count(), 4);
    assert_eq!(Arc::strong_count(&held), 1, "after an error, before the pipeline is dropped");
}

#[test]
fn a_thread_is_added_while_the_consumer_waits() {
    let threads = |count| thread::available_parallelism().map_or(1, usize::from).min(count);
    let (sender, receiver) = mpsc::channel();
    let slow = move |number: u64| {
        thread::sleep(Duration::from_millis(2));
        // The receiver is gone after the test.
        sender.send(thread::current().id()).unwrap_or(());
        Ok(number)
    };
    let mut elements = numbers(5000).map(Threads::Auto, slow);
    let mut seen = BTreeSet::new();
    while seen.len() < threads(2) {
        elements.next().expect("10 s pass before this ends").unwrap();
        seen.extend(receiver.try_iter().map(|id| format!("{id:?}")));
    }
}

#[test]
fn elements_beyond_the_depth_are_not_made() {
    let (sender, made) = mpsc::channel();
    let mut elements = Pipeline::of((0_u64..).inspect(move |&number| sender.send(number).unwrap_or(())))
        .prefetch(Depth::Fixed(5));
    let mut made_until = 0;
    for taken in 0..500 {
        assert!(matches!(elements.next(), Some(Ok(number)) if number == taken));
        // The elements taken, and five prefetched ones. An element that was made too early is detected here, at the latest in the next round.
        while made_until < taken + 6 {
            assert_eq!(made.recv(), Ok(made_until));
            made_until += 1;
        }
        assert!(made.try_recv().is_err(), "the thread went on without room");
    }
}

#[test]
fn stages_hold_no_more_elements_than_allowed() {
    // Counts the existing elements.
    struct Counted(Arc<AtomicU64>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    assert_eq!(holding(3), None);
    for most in [4, 5, 7, 12, 200] {
        let (threads, depth) = holding(most).expect("enough");
        let (held, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (counted, highest) = (Arc::clone(&held), Arc::clone(&seen));
        let make = move |_| {
            let now = counted.fetch_add(1, Ordering::SeqCst) + 1;
            highest.fetch_max(now, Ordering::SeqCst);
            Ok(Counted(Arc::clone(&counted)))
        };
        let elements = numbers(60).map(threads, make).prefetch(depth);
        for element in elements {
            thread::sleep(Duration::from_millis(1));
            drop(element);
        }
        let seen = seen.load(Ordering::SeqCst);
        assert!((3..=most as u64).contains(&seen), "{seen} of {most}");
        assert_eq!(held.load(Ordering::SeqCst), 0);
    }
}
