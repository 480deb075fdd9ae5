//! Random augmentation of images, which reduces overfitting.

use image::{GrayImage, Luma};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// The bounds of random shifts, rotations and mirroring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Augmentation {
    /// The maximum shift in each direction, in pixels.
    pub shift_pixels: u32,
    /// The maximum rotation either way, in degrees.
    pub rotation_degrees: u32,
    /// Whether to mirror every other image horizontally. Wrong for digits and letters.
    pub mirror: bool,
}

impl Augmentation {
    /// A variant of `image`, of the same size. Pixels from outside repeat the edge.
    pub(super) fn apply(self, image: &GrayImage, rng: &mut ChaCha8Rng) -> GrayImage {
        let (shift, turn) = (self.shift_pixels as f32, self.rotation_degrees as f32);
        let (right, down) = (rng.random_range(-shift..=shift), rng.random_range(-shift..=shift));
        let (sin, cos) = rng.random_range(-turn..=turn).to_radians().sin_cos();
        let is_mirrored = self.mirror && rng.random();
        let middle = [(image.width() - 1) as f32 / 2.0, (image.height() - 1) as f32 / 2.0];
        // The source position of each pixel: the inverse transformation.
        GrayImage::from_fn(image.width(), image.height(), |x, y| {
            let (x, y) = (x as f32 - middle[0] - right, y as f32 - middle[1] - down);
            let (x, y) = (cos * x + sin * y, cos * y - sin * x);
            let x = if is_mirrored { -x } else { x };
            Luma([between(image, x + middle[0], y + middle[1])])
        })
    }
}

/// The bilinearly interpolated grey level at a point.
fn between(image: &GrayImage, x: f32, y: f32) -> u8 {
    let (x, y) = (x.clamp(0.0, (image.width() - 1) as f32), y.clamp(0.0, (image.height() - 1) as f32));
    let (left, top) = (x as u32, y as u32);
    let (right, bottom) = ((left + 1).min(image.width() - 1), (top + 1).min(image.height() - 1));
    let (along, down) = (x - left as f32, y - top as f32);
    let grey = |x, y| f32::from(image.get_pixel(x, y).0[0]);
    let mix = |a: f32, b: f32, share: f32| a + (b - a) * share;
    let upper = mix(grey(left, top), grey(right, top), along);
    let lower = mix(grey(left, bottom), grey(right, bottom), along);
    mix(upper, lower, down).round() as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::rng_of;

    fn image() -> GrayImage {
        GrayImage::from_fn(9, 6, |x, y| Luma([(20 * x + 3 * y) as u8]))
    }

    fn variants(augmentation: Augmentation) -> Vec<GrayImage> {
        (0..20).map(|sample| augmentation.apply(&image(), &mut rng_of([1, 2, 3, sample]))).collect()
    }

    #[test]
    fn nothing_asked_for_is_nothing_done() {
        assert!(variants(Augmentation::default()).iter().all(|variant| *variant == image()));
    }

    #[test]
    fn a_mirrored_image_is_mirrored_exactly() {
        let variants = variants(Augmentation { mirror: true, ..Augmentation::default() });
        let mirrored = image::imageops::flip_horizontal(&image());
        let count = variants.iter().filter(|&variant| *variant == mirrored).count();
        assert!((1..20).contains(&count), "{count} of 20 were mirrored");
        assert!(variants.iter().all(|variant| *variant == mirrored || *variant == image()));
    }

    #[test]
    fn variants_follow_from_the_key_and_stay_near() {
        let some = Augmentation { shift_pixels: 1, rotation_degrees: 5, mirror: false };
        let first = variants(some);
        assert_eq!(first, variants(some));
        assert_ne!(first[0], first[1]);
        for variant in first {
            // A pixel to the side is 20, one down is 3; a rotation by 5 degrees moves the corner by less than one.
            let near = |(a, b): (&u8, &u8)| a.abs_diff(*b) <= 40;
            assert!(variant.as_raw().iter().zip(image().as_raw()).all(near));
        }
    }

    #[test]
    fn a_quarter_turn_carries_right_to_down() {
        // The inverse of a quarter turn about the middle of a square.
        let square = GrayImage::from_fn(5, 5, |x, _| Luma([50 * x as u8]));
        let turned = GrayImage::from_fn(5, 5, |x, y| Luma([between(&square, y as f32, x as f32)]));
        assert_eq!(turned.get_pixel(0, 4).0, [200]);
        assert_eq!(between(&square, 1.5, 2.0), 75);
        assert_eq!(between(&square, -3.0, 9.0), 0);
    }
}
