//! Tests that records are read back as they were written, by any process.

use std::io::{Seek, SeekFrom, Write};
use std::sync::atomic::AtomicUsize;
use std::thread;

use super::*;

fn plan<'a>(directory: &'a Path, key: &'a str, compression: Compression) -> Plan<'a> {
    Plan { directory, name: "train", key, compression, records: 100, record_bytes: 50 }
}

/// Returns record n, which has n bytes, most of them equal. Record 7 is empty.
fn record(number: usize) -> Result<Vec<u8>, DataError> {
    let length = if number == 7 { 0 } else { number };
    Ok((0..length).map(|at| (number + at / 20) as u8).collect())
}

fn check(snapshot: &Snapshot) {
    for number in 0..100 {
        assert_eq!(snapshot.record(number).unwrap(), record(number).unwrap(), "record {number}");
    }
}

#[test]
fn written_records_are_read_by_all_processes() {
    for compression in [Compression::None, Compression::Lz4] {
        let folder = tempfile::tempdir().unwrap();
        let plan = plan(folder.path(), "a", compression);
        assert_eq!(plan.missing_bytes(), 100 * (50 + 16));
        let written: Vec<u64> = thread::scope(|scope| {
            let threads = [(); 3].map(|()| {
                scope.spawn(|| {
                    let snapshot = plan.make(record).unwrap();
                    check(&snapshot);
                    snapshot.written
                })
            });
            threads.map(|thread| thread.join().unwrap()).to_vec()
        });
        assert_eq!(written.into_iter().sum::<u64>(), 100, "each record once");
        assert_eq!(plan.missing_bytes(), 0);
        let again = plan.make(|_| panic!("it is there")).unwrap();
        assert_eq!(again.written, 0);
        check(&again);
        assert!(again.bytes() > 0);
    }
}

#[test]
fn waiting_processes_observe_every_slow_record() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let (mut file, mut lengths) = (fs::File::create(&path).unwrap(), vec![]);
    let records = (0..3).map(|_| {
        lengths.push(fs::metadata(&path).unwrap().len());
        thread::sleep(shard::FLUSH_INTERVAL);
        Ok(vec![1; 10])
    });
    shard::write(&mut file, &path, ("a", Compression::None), records).unwrap();
    assert!(lengths.is_sorted_by(|before, after| before < after), "{lengths:?}");
}

#[test]
fn other_and_damaged_shards_are_written_anew() {
    let folder = tempfile::tempdir().unwrap();
    plan(folder.path(), "old", Compression::None).make(|_| Ok(vec![0])).unwrap();
    let plan = plan(folder.path(), "new", Compression::None);
    let snapshot = plan.make(record).unwrap();
    assert_eq!(snapshot.written, 100);
    check(&snapshot);
    let paths = plan.paths();
    for (path, length) in paths.iter().zip([0, 1, 8, 100, 300]) {
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(length).unwrap();
    }
    let counted = AtomicUsize::new(0);
    let snapshot = plan
        .make(|number| {
            counted.fetch_add(1, Ordering::Relaxed);
            record(number)
        })
        .unwrap();
    assert_eq!((snapshot.written, counted.into_inner()), (35, 35), "five shards of seven records");
    check(&snapshot);
}

#[test]
fn a_flipped_byte_is_reported_with_its_record() {
    for compression in [Compression::None, Compression::Lz4] {
        let folder = tempfile::tempdir().unwrap();
        let plan = plan(folder.path(), "a", compression);
        let snapshot = plan.make(record).unwrap();
        let last = plan.paths().pop().unwrap();
        let mut file = fs::OpenOptions::new().write(true).open(&last).unwrap();
        // The end and the checksum of each record follow the records, in 16 bytes.
        let numbers = 16 * plan.of_shard(plan.paths().len() - 1).len() as i64;
        file.seek(SeekFrom::End(-1 - numbers)).unwrap();
        file.write_all(&[255]).unwrap();
        let found = (0..100).filter_map(|number| snapshot.record(number).err()).collect::<Vec<_>>();
        assert_eq!(found.len(), 1, "{found:?}");
        let message = found[0].to_string();
        assert!(
            message.contains("train-00014-of-00015.safetensors") && message.contains("is damaged"),
            "{message}"
        );
    }
}

#[test]
fn a_failing_record_ends_the_snapshot_and_leaves_complete_shards() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(folder.path(), "a", Compression::None);
    let fails = |number| if number == 40 { Err(DataError::other("no 40")) } else { record(number) };
    assert_eq!(plan.make(fails).unwrap_err().to_string(), "no 40");
    let there = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(there, 5, "those before");
    let snapshot = plan.make(record).unwrap();
    assert_eq!(snapshot.written, 100 - 35);
    check(&snapshot);
}

fn options(directory: &Path) -> SnapshotOptions {
    SnapshotOptions { directory: directory.into(), compression: Compression::Lz4 }
}

fn element(number: usize) -> Vec<u8> {
    vec![number as u8; number % 7 * (256 << 10)]
}

fn elements(count: usize) -> Pipeline<Vec<u8>> {
    Pipeline::of((0..count).map(element))
}

#[test]
fn one_process_makes_the_elements_and_all_read_them() {
    let (folder, made) = (tempfile::tempdir().unwrap(), AtomicU64::new(0));
    let make = || {
        made.fetch_add(1, Ordering::Relaxed);
        Ok(elements(60))
    };
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let kept = Pipeline::snapshot(&options(folder.path()), "a", make).unwrap();
                assert_eq!(kept.len(), 60);
                assert!(kept.elements().flatten().eq((0..60).map(element)));
                let mut shuffled: Vec<_> = kept.shuffled(1, 2).flatten().collect();
                assert_ne!(shuffled[..9], (0..9).map(element).collect::<Vec<_>>()[..]);
                shuffled.sort();
                let mut sorted: Vec<_> = (0..60).map(element).collect();
                sorted.sort();
                assert_eq!(shuffled, sorted);
            });
        }
    });
    assert_eq!(made.into_inner(), 1);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn partial_and_damaged_files_are_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    let fail = || Ok(elements(60).take(50).map_last_to_an_error());
    assert!(Pipeline::snapshot(&options(folder.path()), "a", fail).is_err());
    let keep = |count| Pipeline::snapshot(&options(folder.path()), "a", move || Ok(elements(count))).unwrap();
    assert_eq!(keep(60).len(), 60);
    assert_eq!(keep(5).len(), 60, "it is there");
    fs::write(folder.path().join("a.safetensors"), "damaged").unwrap();
    assert_eq!(keep(5).len(), 5);
    let other = Pipeline::snapshot(&options(folder.path()), "b", || Ok(elements(3))).unwrap();
    assert_eq!((other.len(), keep(9).len()), (3, 5));
}

impl Pipeline<Vec<u8>> {
    fn map_last_to_an_error(self) -> Self {
        let mut count = 0;
        Self::new(Iterator::map(self, move |element| {
            count += 1;
            if count == 50 { Err(DataError::other("no more")) } else { element }
        }))
    }
}
