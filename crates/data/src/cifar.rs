//! CIFAR-10's binary files.
//!
//! A file is a sequence of records: a label, then 1024 levels each of red, green and blue, row by row. (Krizhevsky, "Learning multiple
//! layers of features from tiny images", 2009.)

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::normalization::{Normalize, Sums};
use crate::stored::{Content, Images, Labels, Numbers, StoredSamples};
use crate::{Augmentation, DataError, Dataset, Kind, Options, Schema};

const SIDE: usize = 32;
const CHANNELS: usize = 3;
const IMAGE: usize = SIDE * SIDE * CHANNELS;
const RECORD: usize = 1 + IMAGE;
const CLASSES: u8 = 10;
const TEST: &str = "test_batch.bin";
const NAMES: &str = "batches.meta.txt";

/// Reads the data set in `directory`. Classes have names if the file of names exists.
pub(super) fn read(directory: &Path, options: &Options) -> Result<Dataset, DataError> {
    if !directory.is_dir() {
        return Err(DataError::file(directory, "is not a directory"));
    }
    let path = |name: &String| directory.join(name);
    let count = (1..=5).filter(|&part| path(&part_name(part)).exists()).count().max(1);
    // The existing parts, without a gap.
    let expected: Vec<_> = (1..=count).map(part_name).chain([TEST.to_owned()]).collect();
    if let Some(missing) = expected.iter().find(|name| !path(name).exists()) {
        return Err(DataError::file(directory, format!("contains no {missing}: expected it there")));
    }
    let files: Vec<_> = expected.iter().map(path).collect();
    let ([train, train_labels], test) = (images(&files[..count])?, images(&files[count..])?);
    let measured = || Ok(Sums::of(&train, CHANNELS));
    let normalization = Normalize::resolved(options.normalize.as_ref(), CHANNELS, measured)?;
    let part = |[levels, labels]: [Vec<u8>; 2], augmentation| {
        let (count, normalization) = (labels.len(), normalization.clone());
        let images = Images::new(Numbers::Memory(levels), [SIDE, SIDE, CHANNELS]);
        let images = Content::Images(Images { augmentation, normalization, ..images });
        StoredSamples::new(images, &Arc::new(Labels::Bytes(labels)), (0..count).collect())
    };
    let test = part(test, Augmentation::default());
    let train = part([train, train_labels], options.augmentation.clone());
    let classes = names(&directory.join(NAMES))?;
    let kind = Kind::Images { height: SIDE, width: SIDE, channels: CHANNELS, classes: CLASSES.into() };
    let schema = Schema { classes, normalization, ..Schema::default() };
    Ok(Dataset { kind, train, test, schema })
}

fn part_name(part: usize) -> String {
    format!("data_batch_{part}.bin")
}

fn names(path: &Path) -> Result<Vec<String>, DataError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(DataError::read(path)(error)),
    };
    let names: Vec<_> =
        text.lines().map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    if names.len() == usize::from(CLASSES) {
        return Ok(names);
    }
    let problem = format!("has {} names of classes: expected {CLASSES}, one on each line", names.len());
    Err(DataError::file(path, problem))
}

fn images(files: &[PathBuf]) -> Result<[Vec<u8>; 2], DataError> {
    let (mut levels, mut labels) = (vec![], vec![]);
    for path in files {
        let bytes = fs::read(path).map_err(DataError::read(path))?;
        let length = bytes.len();
        if length == 0 || !length.is_multiple_of(RECORD) {
            let problem = format!(
                "has {length} bytes: expected a multiple of {RECORD}, a label and 32x32 pixels of red, green and blue; fetch it again"
            );
            return Err(DataError::file(path, problem));
        }
        for (number, record) in bytes.chunks_exact(RECORD).enumerate() {
            let (label, planes) = (record[0], &record[1..]);
            if label >= CLASSES {
                let problem = format!("has the label {label} in record {number}: expected one from 0 to 9");
                return Err(DataError::file(path, problem));
            }
            let level = |pixel: usize, channel: usize| planes[channel * SIDE * SIDE + pixel];
            let of_pixel = |pixel: usize| (0..CHANNELS).map(move |channel| level(pixel, channel));
            labels.push(label);
            levels.extend((0..SIDE * SIDE).flat_map(of_pixel));
        }
    }
    Ok([levels, labels])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Inputs, Pass};
    use crate::normalization::GREY;
    use crate::split::Split;

    /// Writes records of images with a single colour: ten times the label, plus 0, 1 and 2 for red, green and blue.
    fn write(file: &Path, labels: &[u8]) {
        let record = |&label: &u8| {
            let planes = (0..3).flat_map(move |channel| vec![10 * label + channel; SIDE * SIDE]);
            std::iter::once(label).chain(planes).collect::<Vec<_>>()
        };
        fs::write(file, labels.iter().flat_map(record).collect::<Vec<_>>()).unwrap();
    }

    fn levels(split: &Arc<dyn Split>, samples: &[usize], pass: Pass) -> (Vec<u8>, Vec<u32>) {
        let batch = split.batch(samples, pass).unwrap();
        let Inputs::Pixels(pixels) = batch.inputs else { panic!("not pixels") };
        let levels = pixels.iter().map(|level| ((level * GREY.1 + GREY.0) * 255.0).round() as u8).collect();
        (levels, batch.targets)
    }

    #[test]
    fn records_are_read_in_order_with_interleaved_channels() {
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join("data_batch_1.bin"), &[3, 0]);
        write(&folder.path().join("data_batch_2.bin"), &[9]);
        write(&folder.path().join(TEST), &[7, 1]);
        let names = "zero\none\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\n\n";
        fs::write(folder.path().join(NAMES), names).unwrap();
        let data = read(folder.path(), &Options::default()).unwrap();
        assert_eq!(data.kind, Kind::Images { height: 32, width: 32, channels: 3, classes: 10 });
        assert_eq!((data.train.len(), data.test.len(), &*data.schema.classes[3]), (3, 2, "three"));
        let (pixels, targets) = levels(&data.train, &[2, 0], Pass::Evaluation);
        assert_eq!((targets, pixels.len()), (vec![9, 3], 2 * IMAGE));
        assert_eq!((&pixels[..6], &pixels[IMAGE..][..3]), (&[90, 91, 92, 90, 91, 92][..], &[30, 31, 32][..]));
    }

    #[test]
    fn crops_differ_by_sample_and_epoch_and_are_reproducible() {
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join("data_batch_1.bin"), &[9; 20]);
        write(&folder.path().join(TEST), &[9]);
        let augmentation = "mirror,crop".parse().unwrap();
        let options = Options { augmentation, ..Options::default() };
        let data = read(folder.path(), &options).unwrap();
        let of = |samples: &[usize], epoch| levels(&data.train, samples, Pass::Training { seed: 1, epoch }).0;
        let all: Vec<_> = (0..20).collect();
        let first = of(&all, 1);
        assert_eq!(first[5 * IMAGE..][..IMAGE], of(&[5], 1), "in any batch");
        assert_ne!(first, of(&all, 2));
        // Pixels from outside are black.
        let black = |image: &[u8]| image.chunks(3).filter(|pixel| *pixel == [0, 0, 0]).count();
        let outside: Vec<_> = first.chunks(IMAGE).map(black).collect();
        assert!(
            outside.iter().any(|&count| count > 32) && outside.iter().all(|&count| count <= 8 * 32),
            "{outside:?}"
        );
        assert_eq!(black(&levels(&data.test, &[0], Pass::Training { seed: 1, epoch: 1 }).0), 0);
    }

    #[test]
    fn damaged_files_are_refused_by_name() {
        let refused = |prepare: &dyn Fn(&Path)| {
            let folder = tempfile::tempdir().unwrap();
            write(&folder.path().join("data_batch_1.bin"), &[1]);
            write(&folder.path().join(TEST), &[1]);
            prepare(folder.path());
            read(folder.path(), &Options::default()).unwrap_err().to_string()
        };
        let cut = refused(&|folder| fs::write(folder.join("data_batch_2.bin"), [0; 100]).unwrap());
        assert!(
            cut.contains("data_batch_2.bin") && cut.contains("100 bytes: expected a multiple of 3073"),
            "{cut}"
        );
        let label = refused(&|folder| write(&folder.join(TEST), &[1, 10]));
        assert!(label.contains("the label 10 in record 1"), "{label}");
        let missing = refused(&|folder| fs::remove_file(folder.join(TEST)).unwrap());
        assert!(missing.contains("test_batch.bin"), "{missing}");
        let gap = refused(&|folder| write(&folder.join("data_batch_3.bin"), &[1]));
        assert!(gap.contains("data_batch_2.bin"), "{gap}");
        let names = refused(&|folder| fs::write(folder.join(NAMES), "cat\ndog\n").unwrap());
        assert!(names.contains("has 2 names of classes: expected 10"), "{names}");
        let binary = refused(&|folder| fs::write(folder.join(NAMES), [0xff, 0xfe]).unwrap());
        assert!(binary.contains("batches.meta.txt"), "{binary}");
        let nothing = refused(&|folder| fs::remove_file(folder.join("data_batch_1.bin")).unwrap());
        assert!(nothing.contains("data_batch_1.bin"), "{nothing}");
    }
}
