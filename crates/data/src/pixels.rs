//! Images as 8-bit levels in memory, and their resizing.

use image::imageops::{self, FilterType};
use image::{GrayImage, ImageBuffer, Pixel, RgbImage};

/// An image of 8-bit levels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Rows of pixels.
    pub height: usize,
    /// Columns of pixels.
    pub width: usize,
    /// Channels of a pixel: 1 for greyscale, 3 for red, green and blue.
    pub channels: usize,
    /// The levels row by row, with interleaved channels.
    pub levels: Vec<u8>,
}

impl Image {
    /// Creates an image from its height, width and channels, and its levels.
    ///
    /// # Panics
    /// If the number of levels is not the product of the shape.
    pub fn new([height, width, channels]: [usize; 3], levels: Vec<u8>) -> Self {
        assert_eq!(levels.len(), height * width * channels, "levels of an image of another shape");
        Self { height, width, channels, levels }
    }

    /// Returns the height, width and channels.
    pub fn shape(&self) -> [usize; 3] {
        [self.height, self.width, self.channels]
    }

    /// Returns the levels of a pixel.
    ///
    /// # Panics
    /// If the pixel is outside the image.
    pub fn pixel(&self, x: usize, y: usize) -> &[u8] {
        &self.levels[(y * self.width + x) * self.channels..][..self.channels]
    }
}

/// Rounds a level to the nearest integer, halves up. Equals `f32::round`, which is a library call on many processors.
pub(crate) fn rounded(level: f32) -> u8 {
    let whole = level as u8;
    whole + u8::from(level - f32::from(whole) >= 0.5)
}

/// The ratio of sides beyond which only the centre of an image is read: the rest would be resized only to be cropped.
const LONGEST: u64 = 8;

/// Fits an image of any size to `[height, width]` pixels: resizes it, with its aspect ratio, until it covers them, and crops it to the centre. Equals
/// torchvision's `Resize` and `CenterCrop`, with the antialiased bilinear filter of Pillow.
pub(super) fn fitted(image: Image, to: [usize; 2]) -> Image {
    let Image { height, width, channels, .. } = image;
    if [height, width] == to {
        return image;
    }
    let sides = [height, width].map(|side| side as u32);
    let to = to.map(|side| side as u32);
    let whole = "an image has so many levels";
    let levels = match channels {
        1 => covering(&GrayImage::from_raw(sides[1], sides[0], image.levels).expect(whole), to),
        _ => covering(&RgbImage::from_raw(sides[1], sides[0], image.levels).expect(whole), to),
    };
    Image::new([to[0] as usize, to[1] as usize, channels], levels)
}

fn covering<P>(image: &ImageBuffer<P, Vec<u8>>, to: [u32; 2]) -> Vec<u8>
where
    P: Pixel<Subpixel = u8> + 'static,
{
    let [height, width] = kept([image.height(), image.width()], to);
    let (x, y) = (middle(image.width(), width), middle(image.height(), height));
    let image = imageops::crop_imm(image, x, y, width, height);
    let [rows, columns] = cover([height, width], to);
    let resized = imageops::resize(&*image, columns, rows, FilterType::Triangle);
    let (x, y) = (middle(columns, to[1]), middle(rows, to[0]));
    imageops::crop_imm(&resized, x, y, to[1], to[0]).to_image().into_raw()
}

/// Returns the smallest sides with the ratio of `from` that are not shorter than `to`.
fn cover(from: [u32; 2], to: [u32; 2]) -> [u32; 2] {
    let ([height, width], [rows, columns]) = (from.map(u64::from), to.map(u64::from));
    match rows * width >= columns * height {
        true => [to[0], (rows * width / height) as u32],
        false => [(columns * height / width) as u32, to[1]],
    }
}

/// Returns the sides of the central part to read: the whole image, unless one side is far longer than needed.
fn kept(from: [u32; 2], to: [u32; 2]) -> [u32; 2] {
    let most = |across: usize| {
        let needed = u64::from(from[across]) * u64::from(to[1 - across]) / u64::from(to[across]);
        u32::try_from(LONGEST * (needed + 1)).unwrap_or(u32::MAX)
    };
    [from[0].min(most(1)), from[1].min(most(0))]
}

/// Returns the offset that centres `inner` in `outer` pixels: half of the rest, rounded to even.
fn middle(outer: u32, inner: u32) -> u32 {
    let rest = outer - inner;
    let half = rest / 2;
    if rest % 2 == 1 && half % 2 == 1 { half + 1 } else { half }
}

#[cfg(test)]
mod tests;
