//! Colour images in memory.

use xxhash_rust::xxh3::Xxh3;

use crate::augment::Augmentation;
use crate::batch::{Pass, Values};
use crate::normalization::{Normalization, Sums};
use crate::pixels::Image;

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
    augmentation: Augmentation,
    normalization: Option<Normalization>,
}

impl ColourImages {
    pub(super) fn new(sides: [usize; 2], augmentation: Augmentation) -> Self {
        Self { sides, pixels: Vec::new(), labels: Vec::new(), augmentation, normalization: None }
    }

    /// Adds an image, the channels of each pixel side by side.
    pub(super) fn push(&mut self, label: u8, levels: impl Iterator<Item = u8>) {
        self.labels.push(label);
        self.pixels.extend(levels);
    }

    /// The sums over all levels.
    pub(super) fn sums(&self) -> Sums {
        Sums::of(&self.pixels, CHANNELS)
    }

    /// The same images, normalised by these statistics.
    pub(super) fn normalized_by(self, normalization: Option<Normalization>) -> Self {
        Self { normalization, ..self }
    }

    /// The statistics that they are normalised by, if they are not those of MNIST.
    pub(super) fn normalization(&self) -> Option<&Normalization> {
        self.normalization.as_ref()
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
            let levels = self.pixels[sample * size..][..size].to_vec();
            let image = Image::new([height, width, CHANNELS], levels);
            gathered.extend(self.augmentation.apply(image, pass, sample).levels);
        }
        let targets = samples.iter().map(|&sample| u32::from(self.labels[sample])).collect();
        (Values::Levels(gathered), targets)
    }
}
