//! The transforms that users select by name: shifts and rotations, crops, mirroring, changes of colour, and erasing.

use super::Transform;
use crate::pixels::{Image, rounded};
use crate::random::Random;

/// Shifts and rotates an image about its centre, with bilinear interpolation. Pixels outside the image repeat the edge.
#[derive(Debug, Clone, Copy)]
pub struct Affine {
    /// The maximum shift in each direction, in pixels.
    pub pixels: u32,
    /// The maximum rotation in either direction, in degrees.
    pub degrees: u32,
}

impl Transform for Affine {
    fn name(&self) -> String {
        format!("affine:{}:{}", self.pixels, self.degrees)
    }

    fn apply(&self, image: Image, random: &mut Random) -> Image {
        let (shift, turn) = (self.pixels as f32, self.degrees as f32);
        let [right, down] = [(); 2].map(|()| random.number(-shift..=shift));
        let (sin, cos) = random.number(-turn..=turn).to_radians().sin_cos();
        let Image { height, width, channels, .. } = image;
        let middle = [(width - 1) as f32 / 2.0, (height - 1) as f32 / 2.0];
        let mut levels = vec![0; image.levels.len()];
        for (at, pixel) in levels.chunks_exact_mut(channels).enumerate() {
            // The source position of each pixel: the inverse transformation.
            let (x, y) = ((at % width) as f32 - middle[0] - right, (at / width) as f32 - middle[1] - down);
            let (x, y) = (cos * x + sin * y, cos * y - sin * x);
            interpolate(&image, x + middle[0], y + middle[1], pixel);
        }
        Image { levels, ..image }
    }
}

/// Writes the bilinearly interpolated pixel at a point.
fn interpolate(image: &Image, x: f32, y: f32, pixel: &mut [u8]) {
    let (x, y) = (x.clamp(0.0, (image.width - 1) as f32), y.clamp(0.0, (image.height - 1) as f32));
    let (left, top) = (x as usize, y as usize);
    let (right, bottom) = ((left + 1).min(image.width - 1), (top + 1).min(image.height - 1));
    let (along, down) = (x - left as f32, y - top as f32);
    let mix = |a: u8, b: u8, share: f32| f32::from(a) + (f32::from(b) - f32::from(a)) * share;
    let corners = [(left, top), (right, top), (left, bottom), (right, bottom)];
    let corners = corners.map(|(x, y)| image.pixel(x, y));
    for (channel, level) in pixel.iter_mut().enumerate() {
        let [a, b, c, d] = corners.map(|corner| corner[channel]);
        let (upper, lower) = (mix(a, b, along), mix(c, d, along));
        *level = rounded(upper + (lower - upper) * down);
    }
}

/// Crops an image to its original size at a random position, after padding it with black pixels on each side.
#[derive(Debug, Clone, Copy)]
pub struct Crop {
    /// The padding on each side, in pixels.
    pub padding: u32,
}

impl Transform for Crop {
    fn name(&self) -> String {
        format!("crop:{}", self.padding)
    }

    fn apply(&self, image: Image, random: &mut Random) -> Image {
        let padding = i64::from(self.padding);
        let [right, down] = [(); 2].map(|()| random.whole(-padding..=padding));
        moved(&image, [right, down])
    }
}

/// Shifts an image to the right and down by whole pixels, a row at a time. Pixels from outside are black.
fn moved(image: &Image, [right, down]: [i64; 2]) -> Image {
    let row_bytes = image.width * image.channels;
    // The offsets of the part of a row that remains, in the result and in the original.
    let [to, from] =
        [right, -right].map(|offset| offset.clamp(0, image.width as i64) as usize * image.channels);
    let inside = row_bytes - to.max(from);
    let mut levels = vec![0; image.levels.len()];
    for (y, target) in (0..).zip(levels.chunks_exact_mut(row_bytes)) {
        let above = y - down;
        if (0..image.height as i64).contains(&above) {
            let source = &image.levels[above as usize * row_bytes..][..row_bytes];
            target[to..][..inside].copy_from_slice(&source[from..][..inside]);
        }
    }
    Image { levels, ..*image }
}

/// Mirrors every other image horizontally, at random. Wrong for digits and letters.
#[derive(Debug, Clone, Copy)]
pub struct Mirror;

impl Transform for Mirror {
    fn name(&self) -> String {
        "mirror".into()
    }

    fn apply(&self, mut image: Image, random: &mut Random) -> Image {
        // Skips as many random numbers as an affine transform draws. Existing checkpoints are of runs that mirrored images by the next number, and
        // must resume with the same bits.
        for _ in 0..3 {
            random.number(0.0..=0.0);
        }
        if random.coin() {
            for row in image.levels.chunks_exact_mut(image.width * image.channels) {
                // Reverses the row, and then the channels of each pixel back.
                row.reverse();
                row.chunks_exact_mut(image.channels).for_each(<[u8]>::reverse);
            }
        }
        image
    }
}

/// Scales brightness, contrast and saturation, in this order, each by a random factor near 1 (torchvision's `ColorJitter` without hues).
#[derive(Debug, Clone, Copy)]
pub struct Jitter {
    /// The maximum change of each factor, in percent.
    pub percent: u32,
}

impl Transform for Jitter {
    fn name(&self) -> String {
        format!("jitter:{}", self.percent)
    }

    fn apply(&self, mut image: Image, random: &mut Random) -> Image {
        let most = self.percent as f32 / 100.0;
        let [brightness, contrast, saturation] =
            [(); 3].map(|()| random.number((1.0 - most).max(0.0)..=1.0 + most));
        let blend = |level: u8, base: f32, factor: f32| {
            (base + factor * (f32::from(level) - base)).round().clamp(0.0, 255.0) as u8
        };
        image.levels.iter_mut().for_each(|level| *level = blend(*level, 0.0, brightness));
        let greys = image.levels.chunks_exact(image.channels).map(grey).map(f64::from).sum::<f64>();
        let mean = (greys / (image.height * image.width) as f64) as f32;
        for pixel in image.levels.chunks_exact_mut(image.channels) {
            pixel.iter_mut().for_each(|level| *level = blend(*level, mean, contrast));
            let grey = grey(pixel);
            pixel.iter_mut().for_each(|level| *level = blend(*level, grey, saturation));
        }
        image
    }
}

/// Returns the luma of a pixel, with the weights of ITU-R BT.601.
fn grey(pixel: &[u8]) -> f32 {
    match *pixel {
        [red, green, blue] => 0.299 * f32::from(red) + 0.587 * f32::from(green) + 0.114 * f32::from(blue),
        _ => f32::from(pixel[0]),
    }
}

/// Fills a random rectangle of every other image with noise (Zhong et al., "Random erasing data augmentation", 2020).
#[derive(Debug, Clone, Copy)]
pub struct Erase {
    /// The maximum fraction of each side that the rectangle covers, in percent.
    pub percent: u32,
}

impl Transform for Erase {
    fn name(&self) -> String {
        format!("erase:{}", self.percent)
    }

    fn apply(&self, mut image: Image, random: &mut Random) -> Image {
        if random.coin() {
            return image;
        }
        // The position and the length of the rectangle along a side.
        let mut along = |side: usize| {
            let most = (side * self.percent.min(100) as usize / 100) as i64;
            let length = random.whole(most.min(1)..=most);
            (random.whole(0..=side as i64 - length) as usize, length as usize)
        };
        let ((top, rows), (left, columns)) = (along(image.height), along(image.width));
        let row_bytes = image.width * image.channels;
        for row in image.levels.chunks_exact_mut(row_bytes).skip(top).take(rows) {
            let erased = &mut row[left * image.channels..][..columns * image.channels];
            erased.iter_mut().for_each(|level| *level = random.whole(0..=255) as u8);
        }
        image
    }
}

#[cfg(test)]
mod tests;
