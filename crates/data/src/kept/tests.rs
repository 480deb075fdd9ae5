//! Tests that batches are the same with a snapshot, and that it follows its source.

use image::{Rgb, RgbImage};

use super::*;
use crate::bad::OnBadSample;
use crate::batch::Pass;
use crate::snapshot::Compression;
use crate::source::Options;

/// Writes two classes of ten images each, of different sizes and all colours.
fn images(folder: &Path) -> Source {
    for class in 0..2_u32 {
        let directory = folder.join(format!("class {class}"));
        fs::create_dir_all(&directory).unwrap();
        for number in 0..10 {
            let colour = |x, y| Rgb([x, y, 20 * number + class].map(|level| level as u8));
            RgbImage::from_fn(8 + number % 2, 7, colour)
                .save(directory.join(format!("{number}.png")))
                .unwrap();
        }
    }
    Source::Images(folder.into())
}

fn options() -> Options {
    Options { augmentation: "affine:2:0,mirror".parse().unwrap(), colour: Some(true), ..Options::default() }
}

fn kept(source: &Source, options: &Options, at: &Path) -> Result<(Dataset, SnapshotReport), DataError> {
    let at = SnapshotOptions { directory: at.into(), compression: Compression::Lz4 };
    crate::load(source, options)?.with_snapshot(source, &at)
}

#[test]
fn batches_have_the_same_bits_with_a_snapshot() {
    let (folder, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = images(folder.path());
    let plain = crate::load(&source, &options()).unwrap();
    for expected in [20, 0] {
        let (dataset, report) = kept(&source, &options(), at.path()).unwrap();
        assert_eq!((report.samples, report.written, report.others.len()), (20, expected, 0));
        assert_eq!(dataset.fingerprint().unwrap(), plain.fingerprint().unwrap());
        for epoch in 1..4 {
            let pass = Pass::Training { seed: 5, epoch };
            let order = plain.train.order(5, epoch);
            assert_eq!(dataset.train.batch(&order, pass).unwrap(), plain.train.batch(&order, pass).unwrap());
        }
        let [found, plain] =
            [&dataset, &plain].map(|data| data.test.batch(&[1, 0], Pass::Evaluation).unwrap());
        assert_eq!(found, plain);
    }
}

#[test]
fn another_spelling_of_the_source_changes_no_description() {
    let (folder, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = images(folder.path());
    kept(&source, &options(), at.path()).unwrap();
    let (_, report) = kept(&Source::Images(folder.path().join(".")), &options(), at.path()).unwrap();
    assert_eq!(report.written, 0);
    assert_eq!(read(&report.directory.join(ABOUT)).unwrap().source, source.to_string());
}

#[test]
fn a_changed_source_has_a_new_snapshot() {
    let (folder, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = images(folder.path());
    let (_, first) = kept(&source, &options(), at.path()).unwrap();
    // Another image in as many bytes, with the modification time preserved, as by `cp --preserve`.
    let path = folder.path().join("class 1/4.png");
    let before = fs::metadata(&path).unwrap();
    RgbImage::from_pixel(8, 7, Rgb([1, 2, 3])).save(&path).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    assert!(file.metadata().unwrap().len() <= before.len());
    file.set_len(before.len()).unwrap();
    file.set_modified(before.modified().unwrap()).unwrap();
    let (changed, second) = kept(&source, &options(), at.path()).unwrap();
    assert_ne!(first.directory, second.directory);
    assert_eq!((second.written, &second.others), (20, &vec![first.directory]));
    assert!(second.to_string().contains("delete those that are not needed"), "{second}");
    let plain = crate::load(&source, &options()).unwrap();
    let all: Vec<_> = (0..plain.train.len()).collect();
    assert_eq!(
        changed.train.batch(&all, Pass::Evaluation).unwrap(),
        plain.train.batch(&all, Pass::Evaluation).unwrap()
    );
    let grey = Options { colour: Some(false), ..options() };
    assert_eq!(kept(&source, &grey, at.path()).unwrap().1.others.len(), 2);
}

#[test]
fn damaged_images_are_refused_or_skipped_with_a_snapshot_too() {
    let (folder, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = images(folder.path());
    fs::write(folder.path().join("class 0/3.png"), b"\x89PNG\r\n\x1a\nno more").unwrap();
    let message = kept(&source, &options(), at.path()).unwrap_err().to_string();
    assert!(message.contains("class 0/3.png") && message.contains("cannot be decoded"), "{message}");
    let skips = Options { on_bad_sample: OnBadSample::Skip { most: Some(1) }, ..options() };
    for round in 0..2 {
        let (dataset, _) = kept(&source, &skips, at.path()).unwrap();
        let (of_writing, all) = (dataset.train.skipped(0), (0..dataset.train.len()).collect::<Vec<_>>());
        assert_eq!((of_writing.count, of_writing.problems.len()), (0, 1 - round));
        let batch = dataset.train.batch(&all, Pass::Evaluation).unwrap();
        assert_eq!((batch.samples, batch.targets.len()), (all.len() - 1, all.len() - 1));
        assert_eq!(dataset.train.skipped(0).count, 1);
        let plain = crate::load(&source, &skips).unwrap();
        assert_eq!(plain.train.batch(&all, Pass::Evaluation).unwrap(), batch);
    }
    let none = Options { on_bad_sample: OnBadSample::Skip { most: Some(0) }, ..options() };
    let refused = kept(&source, &none, at.path()).unwrap().0.train.batch(&[3], Pass::Evaluation).unwrap_err();
    let refused = refused.to_string();
    assert!(refused.contains("class 0/3.png`: was damaged when the snapshot `"), "{refused}");
    assert!(refused.contains("0 damaged samples were skipped before"), "{refused}");
}

#[test]
fn a_damaged_snapshot_is_an_error_even_if_samples_may_be_skipped() {
    let (folder, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = images(folder.path());
    let skips = Options { on_bad_sample: OnBadSample::Skip { most: None }, ..options() };
    let (dataset, report) = kept(&source, &skips, at.path()).unwrap();
    let entries = fs::read_dir(report.directory).unwrap().map(|entry| entry.unwrap().path());
    let mut shards: Vec<_> = entries.filter(|path| path.to_string_lossy().contains("train-")).collect();
    shards.sort();
    drop(dataset);
    // The checksums are at the end of the file.
    let mut bytes = fs::read(&shards[0]).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&shards[0], bytes).unwrap();
    let (dataset, report) = kept(&source, &skips, at.path()).unwrap();
    assert_eq!(report.written, 0);
    let all: Vec<_> = (0..dataset.train.len()).collect();
    let message = dataset.train.batch(&all, Pass::Evaluation).unwrap_err().to_string();
    assert!(message.contains(&format!("cannot read `{}`: record ", shards[0].display())), "{message}");
    assert!(message.ends_with("is damaged: delete the file, and it is written anew"), "{message}");
    assert_eq!(dataset.train.skipped(0).count, 0);
}

#[test]
fn a_snapshot_of_a_source_in_memory_is_refused() {
    let at = tempfile::tempdir().unwrap();
    let options = Options { train_samples: 20, test_samples: 2, ..Options::default() };
    let message = kept(&Source::Digits, &options, at.path()).unwrap_err().to_string();
    assert!(message.contains("a snapshot of digits would have no effect"), "{message}");
}

#[test]
fn a_snapshot_larger_than_the_free_space_is_refused() {
    let at = tempfile::tempdir().unwrap();
    let message = check_room(at.path(), u64::MAX).unwrap_err().to_string();
    assert!(message.contains("needs up to") && message.contains("are free"), "{message}");
}
