//! Images that stay in their files, and are read and decoded when a batch needs them.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use image::DynamicImage;
use image::imageops::FilterType;
use xxhash_rust::xxh3::Xxh3;

use super::augment::Augmentation;
use super::batch::{Inputs, Pass, normalise};
use super::decoding::decode;
use super::records::Records;
use crate::error::DataError;
use crate::pipeline::part;
use crate::random::{AUGMENT, rng_of};
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
        }
    }
}

impl EncodedImages {
    /// Images in separate files, to be resized to `height` x `width` pixels of one value (grey) or three (red, green, blue). Their
    /// classes are unknown, and reported as 0.
    pub fn of_files(files: &[PathBuf], [height, width, channels]: [usize; 3]) -> Self {
        let samples = (0..files.len()).collect();
        let store = Arc::new(Store::Files(files.iter().map(|file| (file.clone(), 0)).collect()));
        Self { store, samples, size: Size { height, width, channels }, augmentation: None }
    }

    /// The training and the held-out images, given by their indices in the store, and their size.
    ///
    /// # Errors
    ///
    /// If the first of them cannot be read.
    pub(super) fn both(
        store: Store,
        (train, test): (Vec<usize>, Vec<usize>),
        &Options { augmentation, colour, .. }: &Options,
    ) -> Result<(Self, Self, Size), DataError> {
        let (first, _) = store.read(train[0])?;
        let channels = if colour { 3 } else { 1 };
        let size = Size { height: first.height() as usize, width: first.width() as usize, channels };
        let store = Arc::new(store);
        let train = Self { store: Arc::clone(&store), samples: train, size, augmentation };
        Ok((train, Self { store, samples: test, size, augmentation: None }, size))
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Adds the names and sizes of files, or the checksums of records, to a hash.
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
            }
        }
        Ok(())
    }

    /// Reads, decodes and, for training, augments these images.
    pub(super) fn gather(&self, samples: &[usize], pass: Pass) -> Result<(Inputs, Vec<u32>), DataError> {
        let mut pixels =
            Vec::with_capacity(samples.len() * self.size.height * self.size.width * self.size.channels);
        let mut targets = Vec::with_capacity(samples.len());
        for &sample in samples {
            let (image, label) = self.store.read(self.samples[sample])?;
            let mut image = part("resizing", || self.fitted(image));
            if let (Pass::Training { seed, epoch }, Some(augmentation)) = (pass, self.augmentation) {
                // Each sample has its own random stream, so the result does not depend on the batch or rank.
                let mut rng = rng_of([seed, AUGMENT, epoch, sample as u64]);
                image = part("augmenting", || augmentation.apply(&image, &mut rng));
            }
            part("batching", || pixels.extend(image.as_bytes().iter().map(|&level| normalise(level))));
            targets.push(label);
        }
        Ok((Inputs::Pixels(pixels), targets))
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

/// Other images of the same store.
impl PartialEq for EncodedImages {
    fn eq(&self, other: &Self) -> bool {
        let is_one_store = Arc::ptr_eq(&self.store, &other.store);
        is_one_store && (&self.samples, self.augmentation) == (&other.samples, other.augmentation)
    }
}
