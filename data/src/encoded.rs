//! Images that stay in their files, and are read and decoded when a batch needs them.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use image::GrayImage;
use image::imageops::{self, FilterType};
use xxhash_rust::xxh3::Xxh3;

use super::augment::Augmentation;
use super::batch::{Inputs, Pass, normalise};
use super::decoding::decode;
use super::records::Records;
use crate::error::DataError;
use crate::random::{AUGMENT, rng_of};

/// Images of one split that stay in their files.
///
/// They are converted to grey, and resized to the size of the first training image.
#[derive(Debug, Clone)]
pub struct EncodedImages {
    store: Arc<Store>,
    /// The indices of these images in the store.
    samples: Vec<usize>,
    size: Size,
    /// The augmentation in training.
    augmentation: Option<Augmentation>,
}

/// Height and width of an image, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) height: usize,
    pub(super) width: usize,
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
    fn read(&self, index: usize) -> Result<(GrayImage, u32), DataError> {
        match self {
            Self::Files(files) => {
                let (path, label) = &files[index];
                let bytes = fs::read(path).map_err(|error| DataError::Read { path: path.clone(), error })?;
                let image =
                    decode(&bytes).map_err(|problem| DataError::Image { path: path.clone(), problem })?;
                Ok((image, *label))
            }
            Self::Records(records) => records.image(index),
        }
    }
}

impl EncodedImages {
    /// Images in separate files, to be resized to `height` x `width` pixels. Their classes are unknown, and reported as 0.
    pub fn of_files(files: &[PathBuf], height: usize, width: usize) -> Self {
        let samples = (0..files.len()).collect();
        let store = Arc::new(Store::Files(files.iter().map(|file| (file.clone(), 0)).collect()));
        Self { store, samples, size: Size { height, width }, augmentation: None }
    }

    /// The training and the held-out images, given by their indices in the store, and their size.
    ///
    /// # Errors
    ///
    /// If the first of them cannot be read.
    pub(super) fn both(
        store: Store,
        (train, test): (Vec<usize>, Vec<usize>),
        augmentation: Option<Augmentation>,
    ) -> Result<(Self, Self, Size), DataError> {
        let (first, _) = store.read(train[0])?;
        let size = Size { height: first.height() as usize, width: first.width() as usize };
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
        let mut pixels = Vec::with_capacity(samples.len() * self.size.height * self.size.width);
        let mut targets = Vec::with_capacity(samples.len());
        for &sample in samples {
            let (image, label) = self.store.read(self.samples[sample])?;
            let mut image = self.resized(image);
            if let (Pass::Training { seed, epoch }, Some(augmentation)) = (pass, self.augmentation) {
                // Each sample has its own random stream, so the result does not depend on the batch or rank.
                image = augmentation.apply(&image, &mut rng_of([seed, AUGMENT, epoch, sample as u64]));
            }
            pixels.extend(image.as_raw().iter().map(|&grey| normalise(grey)));
            targets.push(label);
        }
        Ok((Inputs::Pixels(pixels), targets))
    }

    fn resized(&self, image: GrayImage) -> GrayImage {
        let (width, height) = (self.size.width as u32, self.size.height as u32);
        if image.dimensions() == (width, height) {
            return image;
        }
        imageops::resize(&image, width, height, FilterType::Triangle)
    }
}

/// Other images of the same store.
impl PartialEq for EncodedImages {
    fn eq(&self, other: &Self) -> bool {
        let is_one_store = Arc::ptr_eq(&self.store, &other.store);
        is_one_store && (&self.samples, self.augmentation) == (&other.samples, other.augmentation)
    }
}
