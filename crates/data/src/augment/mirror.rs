//! Random mirroring.

use super::Transform;
use crate::pixels::Image;
use crate::random::Random;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{slope, variants};

    #[test]
    fn some_images_are_mirrored_exactly_and_the_others_are_unchanged() {
        let (variants, image) = (variants(&Mirror), slope());
        let level = |at: usize| image.pixel(image.width - 1 - at % image.width, at / image.width)[0];
        let mirrored = Image { levels: (0..image.levels.len()).map(level).collect(), ..image.clone() };
        let count = variants.iter().filter(|&variant| *variant == mirrored).count();
        assert!((1..20).contains(&count), "{count} of 20 were mirrored");
        assert!(variants.iter().all(|variant| *variant == mirrored || *variant == image));
    }
}
