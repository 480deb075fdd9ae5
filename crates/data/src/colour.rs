//! Colour images in memory.

use image::{DynamicImage, RgbImage};
use xxhash_rust::xxh3::Xxh3;

use crate::augment::Augmentation;
use crate::batch::{Pass, Values};
use crate::random::{AUGMENT, rng_of};

/// Red, green and blue.
const CHANNELS: usize = 3;

/// Colour images of equal size in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct ColourImages {
    /// Height and width.
    sides: [usize; 2],
    /// `samples x height x width x channels`.
    pixels: Vec<u8>,
    labels: Vec<u8>,
    /// The augmentation in training.
    augmentation: Option<Augmentation>,
}

impl ColourImages {
    pub(super) fn new(sides: [usize; 2], augmentation: Option<Augmentation>) -> Self {
        Self { sides, pixels: Vec::new(), labels: Vec::new(), augmentation }
    }

    /// Adds an image, the channels of each pixel side by side.
    pub(super) fn push(&mut self, label: u8, levels: impl Iterator<Item = u8>) {
        self.labels.push(label);
        self.pixels.extend(levels);
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    pub(super) fn hash(&self, hasher: &mut Xxh3) {
        hasher.update(&self.pixels);
        hasher.update(&self.labels);
    }

    /// Gathers and, for training, augments these images.
    pub(super) fn gather(&self, samples: &[usize], pass: Pass) -> (Values, Vec<u32>) {
        let [height, width] = self.sides;
        let size = height * width * CHANNELS;
        let mut gathered = Vec::with_capacity(samples.len() * size);
        for &sample in samples {
            let levels = &self.pixels[sample * size..][..size];
            match (pass, self.augmentation) {
                (Pass::Training { seed, epoch }, Some(augmentation)) => {
                    let image = RgbImage::from_raw(width as u32, height as u32, levels.to_vec());
                    let image = image.expect("an image has so many levels");
                    // Each sample has its own random stream, so the result does not depend on the batch or rank.
                    let random = &mut rng_of([seed, AUGMENT, epoch, sample as u64]);
                    let image = augmentation.apply(&DynamicImage::from(image), random);
                    gathered.extend_from_slice(image.as_bytes());
                }
                _ => gathered.extend_from_slice(levels),
            }
        }
        let targets = samples.iter().map(|&sample| u32::from(self.labels[sample])).collect();
        (Values::Levels(gathered), targets)
    }
}
