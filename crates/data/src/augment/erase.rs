//! Random erasing.

use super::Transform;
use crate::pixels::Image;
use crate::random::Random;

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
mod tests {
    use super::*;
    use crate::testing::{slope, variants};

    #[test]
    fn erasing_changes_a_rectangle_within_the_bounds() {
        let variants = variants(&Erase { percent: 50 });
        let image = slope();
        let kept = variants.iter().filter(|&variant| *variant == image).count();
        assert!((1..20).contains(&kept), "{kept} of 20 were kept");
        for variant in variants {
            let changed = variant.levels.iter().zip(&image.levels).filter(|(a, b)| a != b).count();
            assert!(changed <= 4 * 3, "{changed} of 54 levels changed");
        }
    }

    #[test]
    fn a_rectangle_is_never_larger_than_the_image() {
        assert!(variants(&Erase { percent: 300 }).len() > 1);
    }
}
