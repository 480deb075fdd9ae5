//! Images that stay in their files, and are read and decoded when a batch needs them.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use image::imageops::FilterType;
use image::{DynamicImage, GrayImage, RgbImage};
use xxhash_rust::xxh3::Xxh3;

use super::augment::Augmentation;
use super::bad::{BadSamples, Skipped};
use super::batch::{Pass, Values};
use super::decoding::decode;
use super::members::Members;
use super::records::Records;
use crate::error::DataError;
use crate::pipeline::part;
use crate::random::{AUGMENT, rng_of};
use crate::snapshot::{Plan, Snapshot, Work};
use crate::source::Options;

/// Images of one split that stay in their files.
///
/// They are converted to grey, or to red, green and blue, and resized to the size of the first training image.
#[derive(Debug, Clone)]
pub struct EncodedImages {
    store: Arc<Store>,
    /// The indices of these images in the store.
    samples: Vec<usize>,
    size: Size,
    /// The augmentation in training.
    augmentation: Option<Augmentation>,
    /// Where they are decoded already.
    snapshot: Option<Arc<Snapshot>>,
    bad: BadSamples,
}

/// Height and width of an image, in pixels, and the values of a pixel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) height: usize,
    pub(super) width: usize,
    /// 1 if they are grey, 3 for red, green and blue.
    pub(super) channels: usize,
}

/// The location of the images.
#[derive(Debug)]
pub(super) enum Store {
    /// One per file, with its class.
    Files(Vec<(PathBuf, u32)>),
    /// Many per file, with their classes.
    Records(Records),
    /// In tar files, with their classes.
    Members(Members),
}

impl Store {
    /// Reads an image and its class.
    fn read(&self, index: usize) -> Result<(DynamicImage, u32), DataError> {
        match self {
            Self::Files(files) => {
                let (path, label) = &files[index];
                let bytes = part("reading", || fs::read(path))
                    .map_err(|error| DataError::Read { path: path.clone(), error })?;
                let image = part("decoding", || decode(&bytes))
                    .map_err(|problem| DataError::Image { path: path.clone(), problem })?;
                Ok((image, *label))
            }
            Self::Records(records) => records.image(index),
            Self::Members(members) => members.image(index),
        }
    }
}

impl EncodedImages {
    /// Images in separate files, to be resized to `height` x `width` pixels of one value (grey) or three (red, green, blue). Their
    /// classes are unknown, and reported as 0.
    pub fn of_files(files: &[PathBuf], [height, width, channels]: [usize; 3]) -> Self {
        let samples = (0..files.len()).collect();
        let store = Arc::new(Store::Files(files.iter().map(|file| (file.clone(), 0)).collect()));
        let size = Size { height, width, channels };
        Self { store, samples, size, augmentation: None, snapshot: None, bad: BadSamples::default() }
    }

    /// The training and the held-out images, given by their indices in the store, and their size.
    ///
    /// # Errors
    ///
    /// If the first of them cannot be read.
    pub(super) fn both(
        store: Store,
        (train, test): (Vec<usize>, Vec<usize>),
        &Options { augmentation, colour, on_bad_sample, .. }: &Options,
    ) -> Result<(Self, Self, Size), DataError> {
        let of_training = BadSamples::new(on_bad_sample);
        let first = first_good(&store, &train, &of_training)?;
        let channels = if colour { 3 } else { 1 };
        let size = Size { height: first.height() as usize, width: first.width() as usize, channels };
        let store = Arc::new(store);
        let (samples, bad) = (train, of_training);
        let train = Self { store: Arc::clone(&store), samples, size, augmentation, snapshot: None, bad };
        let bad = BadSamples::new(on_bad_sample);
        Ok((train, Self { store, samples: test, size, augmentation: None, snapshot: None, bad }, size))
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Adds the names and sizes of files and members, or the checksums of records, to a hash.
    pub(super) fn hash(&self, hasher: &mut Xxh3) -> Result<(), DataError> {
        for &sample in &self.samples {
            match &*self.store {
                Store::Files(files) => {
                    let (path, label) = &files[sample];
                    let metadata =
                        fs::metadata(path).map_err(|error| DataError::Read { path: path.clone(), error })?;
                    hasher.update(path.file_name().unwrap_or_default().as_encoded_bytes());
                    hasher.update(&metadata.len().to_le_bytes());
                    hasher.update(&label.to_le_bytes());
                }
                Store::Records(records) => hasher.update(&records.stored_checksum(sample)?),
                Store::Members(members) => members.hash(sample, hasher),
            }
        }
        Ok(())
    }

    /// Reads, decodes and, for training, augments these images, but for damaged ones that may be skipped.
    pub(super) fn gather(&self, samples: &[usize], pass: Pass) -> Result<(Values, Vec<u32>), DataError> {
        let mut levels = Vec::with_capacity(samples.len() * self.size.values());
        let mut targets = Vec::with_capacity(samples.len());
        for &sample in samples {
            let (mut image, label) = match self.image(sample) {
                Ok(found) => found,
                Err(error) => {
                    self.bad.judge(sample, Some(pass), error)?;
                    continue;
                }
            };
            if let (Pass::Training { seed, epoch }, Some(augmentation)) = (pass, self.augmentation) {
                // Each sample has its own random stream, so the result does not depend on the batch or rank.
                let mut rng = rng_of([seed, AUGMENT, epoch, sample as u64]);
                image = part("augmenting", || augmentation.apply(&image, &mut rng));
            }
            levels.extend_from_slice(image.as_bytes());
            targets.push(label);
        }
        Ok((Values::Levels(levels), targets))
    }

    /// An image in the colours and the size of all, and its class.
    fn image(&self, sample: usize) -> Result<(DynamicImage, u32), DataError> {
        if let Some(snapshot) = &self.snapshot {
            let record = part("reading", || snapshot.record(sample))?;
            return self.size.image_of(&record).ok_or_else(|| {
                let problem = format!("sample {sample} was damaged when this was written");
                DataError::Snapshot { path: snapshot.directory().into(), problem }
            });
        }
        let (image, label) = self.store.read(self.samples[sample])?;
        Ok((part("resizing", || self.fitted(image)), label))
    }

    /// Writes what is missing of a snapshot of these images, before they are augmented, and reads them from there.
    pub(super) fn read_from(self, plan: &Plan<'_>) -> Result<(Self, Work), DataError> {
        let record = |sample| match self.image(sample) {
            Ok((image, label)) => Ok([&label.to_le_bytes()[..], image.as_bytes()].concat()),
            // An empty record.
            Err(error) => self.bad.judge(sample, None, error).map(|()| Vec::new()),
        };
        let (snapshot, work) = plan.make(record)?;
        Ok((Self { snapshot: Some(Arc::new(snapshot)), ..self }, work))
    }

    /// The size of an image's record in a snapshot.
    pub(super) fn record_bytes(&self) -> usize {
        size_of::<u32>() + self.size.values()
    }

    /// The size of the snapshot that they are read from.
    pub(super) fn snapshot_bytes(&self) -> u64 {
        self.snapshot.as_ref().map_or(0, |snapshot| snapshot.bytes())
    }

    /// Adds everything to a hash that decoded images follow from: besides [what is known](Self::hash) of their files, when their inodes
    /// last changed. Programs that copy files can preserve the time of modification, but not that one.
    pub(super) fn hash_state(&self, hasher: &mut Xxh3) -> Result<(), DataError> {
        self.hash(hasher)?;
        let Size { height, width, channels } = self.size;
        for side in [height, width, channels] {
            hasher.update(&side.to_le_bytes());
        }
        let changed = |path: &Path, hasher: &mut Xxh3| {
            let file = fs::metadata(path).map_err(|error| DataError::Read { path: path.into(), error })?;
            hasher.update(&file.ctime().to_le_bytes());
            hasher.update(&file.ctime_nsec().to_le_bytes());
            Ok(())
        };
        match &*self.store {
            Store::Files(files) => {
                self.samples.iter().try_for_each(|&sample| changed(&files[sample].0, hasher))
            }
            Store::Members(members) => members.paths().try_for_each(|path| changed(path, hasher)),
            // They have checksums.
            Store::Records(_) => Ok(()),
        }
    }

    /// See [`Split::skipped`](crate::Split::skipped).
    pub(super) fn skipped(&self, epoch: u64) -> Skipped {
        self.bad.news(epoch)
    }

    /// The image in the colours and the size of all.
    fn fitted(&self, image: DynamicImage) -> DynamicImage {
        let Size { height, width, channels } = self.size;
        let (width, height) = (width as u32, height as u32);
        let image: DynamicImage =
            if channels == 1 { image.into_luma8().into() } else { image.into_rgb8().into() };
        if (image.width(), image.height()) == (width, height) {
            return image;
        }
        image.resize_exact(width, height, FilterType::Triangle)
    }
}

impl Size {
    /// The number of values of an image.
    fn values(self) -> usize {
        self.height * self.width * self.channels
    }

    /// The image and the class of a snapshot's record; `None` for one of a damaged image.
    fn image_of(self, record: &[u8]) -> Option<(DynamicImage, u32)> {
        let (label, levels) = record.split_first_chunk()?;
        let (width, height) = (self.width as u32, self.height as u32);
        let image = match self.channels {
            1 => GrayImage::from_raw(width, height, levels.to_vec())?.into(),
            _ => RgbImage::from_raw(width, height, levels.to_vec())?.into(),
        };
        Some((image, u32::from_le_bytes(*label)))
    }
}

/// The first image that can be read.
fn first_good(store: &Store, samples: &[usize], bad: &BadSamples) -> Result<DynamicImage, DataError> {
    for (number, &sample) in samples.iter().enumerate() {
        match store.read(sample) {
            Ok((image, _)) => return Ok(image),
            Err(error) if number + 1 == samples.len() => return Err(error),
            Err(error) => bad.judge(number, None, error)?,
        }
    }
    unreachable!("a split for training has samples")
}

/// Other images of the same store.
impl PartialEq for EncodedImages {
    fn eq(&self, other: &Self) -> bool {
        let is_one_store = Arc::ptr_eq(&self.store, &other.store);
        is_one_store && (&self.samples, self.augmentation) == (&other.samples, other.augmentation)
    }
}
