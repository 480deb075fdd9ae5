//! Small shifts and rotations.

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{slope, variants};

    #[test]
    fn variants_depend_only_on_the_key_and_stay_close() {
        let some = Affine { pixels: 1, degrees: 5 };
        let first = variants(&some);
        assert_eq!(first, variants(&some));
        assert_ne!(first[0], first[1]);
        for variant in first {
            // Levels differ by 20 per pixel to the right and by 3 per pixel down. A rotation by 5 degrees moves the corner by less than one pixel.
            let near = |(a, b): (&u8, &u8)| a.abs_diff(*b) <= 40;
            assert!(variant.levels.iter().zip(&slope().levels).all(near));
        }
    }

    #[test]
    fn a_quarter_turn_maps_right_to_down() {
        // The inverse of a quarter turn about the middle of a square.
        let square = Image::new([5, 5, 1], (0..25).map(|at| 50 * (at % 5)).collect());
        let at = |x: f32, y: f32| {
            let mut pixel = [0];
            interpolate(&square, x, y, &mut pixel);
            pixel[0]
        };
        assert_eq!((at(4.0, 0.0), at(1.5, 2.0), at(-3.0, 9.0)), (200, 75, 0));
    }
}
