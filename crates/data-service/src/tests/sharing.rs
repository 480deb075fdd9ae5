//! Tests of servers with several clients, and of servers that join each other.

use std::thread;

use super::*;

#[test]
fn a_batch_for_several_jobs_is_made_once() {
    let fixture = Fixture::new();
    let source = fixture.images(16, 80);
    let server = fixture.serve(&source);
    let jobs: Vec<_> = (0..3).map(|_| fixture.connect(&[&server]).unwrap()).collect();
    let seen = thread::scope(|scope| {
        let jobs: Vec<_> = jobs.iter().map(|job| scope.spawn(|| epoch(job, |_| ()))).collect();
        jobs.into_iter().map(|job| job.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(seen[1] == seen[0] && seen[2] == seen[0]);
    let batches = seen[0].len() as u64;
    assert_eq!(server.counts(), Counts { made: batches, cached: 2 * batches, refused: 0 });
    let told = server.stop().to_string();
    assert_eq!(
        told,
        format!("served {} batches: {batches} made, {} from the cache", 3 * batches, 2 * batches)
    );
}

#[test]
fn without_cache_memory_every_batch_is_made_anew() {
    let fixture = Fixture::new();
    let settings = ServerSettings { cache_bytes: 0, ..fixture.settings() };
    let server = start(&Source::Digits, &varied(), settings).unwrap();
    let served = fixture.connect(&[&server]).unwrap();
    for _ in 0..2 {
        served.train.batch(&[1, 2], PASS).unwrap();
    }
    assert_eq!(server.counts(), Counts { made: 2, cached: 0, refused: 0 });
}

#[test]
fn requests_beyond_the_queue_are_refused_and_retried() {
    let fixture = Fixture::new();
    let source = fixture.images(96, 40);
    let local = load(&source, &varied()).unwrap();
    let server = fixture.serve(&source);
    let served = fixture.connect(&[&server]).unwrap();
    // One batch is in progress, and sixteen requests wait.
    thread::scope(|scope| {
        for seed in 0..40 {
            let (served, local) = (&served, &local);
            scope.spawn(move || {
                let (samples, pass) = ([1, 5, 9, 13, 17, 21], Pass::Training { seed, epoch: 0 });
                let made = served.train.batch(&samples, pass).unwrap();
                assert_eq!(made, local.train.batch(&samples, pass).unwrap());
            });
        }
    });
    let counts = server.counts();
    assert!(counts.made == 40 && counts.refused > 0, "{counts}");
}

#[test]
fn a_server_with_a_description_of_megabytes_joins() {
    let fixture = Fixture::new();
    // Each character of the vocabulary is in the description.
    let text: String = (0x1_0000..0xd_0000).filter_map(char::from_u32).collect();
    let source = Source::Text(fixture.file("text.txt", text));
    let first = fixture.serve(&source);
    let settings = ServerSettings { join: Some(first.address().to_string()), ..fixture.settings() };
    start(&source, &varied(), settings).unwrap();
}

#[test]
fn a_joining_server_serves_part_of_the_requests() {
    let fixture = Fixture::new();
    let source = fixture.images(16, 60);
    let first = fixture.serve(&source);
    let served = fixture.connect(&[&first]).unwrap();
    let before = epoch(&served, |_| ());
    let settings = ServerSettings {
        listen: "0.0.0.0:0".to_owned(),
        join: Some(first.address().to_string()),
        ..fixture.settings()
    };
    let joined = start(&source, &varied(), settings).unwrap();
    wait_until("the client finds it", || {
        assert_eq!(epoch(&served, |_| ()), before);
        joined.counts().made > 0
    });
    // The server that was joined may leave.
    drop(first);
    assert_eq!(epoch(&served, |_| ()), before);
    wait_until("it is missed", || {
        joined.take_notice().is_some_and(|told| told.contains("which this one has joined"))
    });
}
