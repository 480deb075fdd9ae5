//! Changes of brightness, contrast and colour.

use super::Transform;
use crate::pixels::Image;
use crate::random::Random;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::variants;

    #[test]
    fn levels_change_within_the_bounds_and_pixels_stay_in_place() {
        let variants = variants(&Jitter { percent: 20 });
        assert!(variants[0] != variants[1]);
        for variant in variants {
            // The levels of a row of the slope ascend.
            assert!(variant.levels.chunks(9).all(<[u8]>::is_sorted), "{variant:?}");
        }
    }

    #[test]
    fn factors_of_1_change_nothing() {
        let image = Image::new([1, 2, 3], vec![200, 10, 30, 0, 90, 60]);
        assert_eq!(Jitter { percent: 0 }.apply(image.clone(), &mut Random::new([1, 2, 3, 4])), image);
    }
}
