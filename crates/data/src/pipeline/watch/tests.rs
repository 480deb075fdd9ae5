//! Tests of the reports of stages that sleep and compute.

use std::thread;

use super::*;
use crate::error::DataError;
use crate::pipeline::{Depth, Pipeline, Threads};

/// Runs a pipeline that reads, decodes and augments, the stage with this name slowly, and a consumer that computes. Returns the reports, and the
/// fraction of the time that the consumer waited.
fn stages(slow: &str, compute: Duration) -> (Vec<StageReport>, f64) {
    let sleeps = |name: &str| Duration::from_millis(if name == slow { 4 } else { 1 });
    let [read, decode, augment] = ["source", "decode", "augment"].map(sleeps);
    let rest = |element: u64, time| {
        thread::sleep(time);
        Ok::<_, DataError>(element)
    };
    let mut elements = Pipeline::new((0..20).map(move |element| rest(element, read)))
        .map(Threads::Fixed(1), move |element| part("pixels", || rest(element, decode)))
        .named("decode")
        .map(Threads::Fixed(2), move |element| rest(element, augment + augment))
        .named("augment")
        .prefetch(Depth::Auto);
    let (watch, began) = (elements.watch(), Instant::now());
    let (mut waited, mut asked) = (Duration::ZERO, began);
    while elements.next().is_some() {
        waited += asked.elapsed();
        thread::sleep(compute);
        asked = Instant::now();
    }
    (watch.stages(), waited.as_secs_f64() / began.elapsed().as_secs_f64())
}

/// Tests that measure time run alone.
mod timed {
    use super::*;

    #[test]
    fn the_slow_stage_is_the_bottleneck() {
        for round in 0..20 {
            let slow = ["source", "decode", "augment"][round % 3];
            let (stages, waited) = stages(slow, Duration::ZERO);
            assert_eq!(bottleneck(&stages).expect("they worked").name, slow, "{stages:?}");
            assert!(waited > 0.5, "{waited}");
        }
    }

    #[test]
    fn fractions_add_up_and_parts_belong_to_their_stage() {
        let (stages, waited) = stages("", Duration::from_millis(12));
        assert_eq!(
            stages.iter().map(|stage| stage.name).collect::<Vec<_>>(),
            ["source", "decode", "augment", "prefetch"]
        );
        for stage in &stages {
            assert!((stage.busy + stage.starved + stage.full - 1.0).abs() < 1e-9, "{stage:?}");
            assert_eq!(stage.elements, 20);
        }
        assert!(matches!(stages[1].parts[..], [("pixels", share)] if share > 0.9), "{stages:?}");
        assert!(stages[3].ready > 0.0 && stages[2].full > 0.3, "{stages:?}");
        assert!(waited < 0.3, "{waited}");
        // These stages sleep.
        assert!(stages[1..3].iter().all(|stage| stage.processor < 0.5), "{stages:?}");
    }
}

#[test]
fn concurrently_read_files_count_as_one_stage() {
    let slow = |from: u64| {
        Pipeline::new((from..from + 5).map(|element| {
            thread::sleep(Duration::from_millis(2));
            Ok(element)
        }))
    };
    let epochs =
        Pipeline::repeat(0..2, move |_| Ok(Pipeline::of([0, 10]).interleave(2, move |from| Ok(slow(from)))));
    let watch = epochs.watch();
    assert_eq!(epochs.map(Threads::Fixed(1), Ok).count(), 20);
    let stages = watch.stages();
    assert_eq!((stages.len(), stages[0].threads, stages[0].elements), (2, 2, 10), "{stages:?}");
    assert_eq!(bottleneck(&stages).expect("it worked").name, "source", "{stages:?}");
}

#[test]
fn a_report_restarts_and_shows_processor_time() {
    let mut elements = Pipeline::of(0..50_u64)
        .map(Threads::Fixed(1), |element| {
            let began = processor_time();
            while processor_time() - began < Duration::from_millis(1) {}
            Ok(element)
        })
        .named("compute");
    let watch = elements.watch();
    assert_eq!(elements.by_ref().take(10).count(), 10);
    watch.restart();
    assert_eq!(elements.by_ref().count(), 40);
    let compute = &watch.stages()[1];
    // Two may have been made before the restart.
    assert!((38..=40).contains(&compute.elements), "{compute:?}");
    assert!(compute.processor > 0.1 && compute.busy > 0.0 && compute.busy <= 1.0, "{compute:?}");
}

#[test]
fn repeated_pipelines_without_threads_count_as_the_source() {
    let slow = |epoch: u64| {
        Ok(Pipeline::new((0..5).map(move |element| {
            thread::sleep(Duration::from_millis(2));
            Ok(10 * epoch + element)
        })))
    };
    let elements = Pipeline::repeat(0..2, slow).map(Threads::Fixed(1), Ok).prefetch(Depth::Auto);
    let watch = elements.watch();
    assert_eq!(elements.count(), 10);
    let stages = watch.stages();
    assert_eq!(stages.iter().map(|stage| stage.name).collect::<Vec<_>>(), ["source", "map", "prefetch"]);
    assert_eq!(bottleneck(&stages).expect("it worked").name, "source", "{stages:?}");
}

#[test]
fn reports_may_be_read_during_a_restart() {
    const COUNT: u64 = 100_000;
    let counters = Counters::new("map", 1);
    let watch = Watch::default().then(&counters);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..COUNT {
                counters.add(Sum::Elements, 1);
                watch.restart();
            }
        });
        for _ in 0..COUNT {
            assert!(watch.stages().iter().all(|stage| stage.elements <= COUNT));
        }
    });
}
