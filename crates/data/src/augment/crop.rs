//! Random crops.

use super::Transform;
use crate::pixels::Image;
use crate::random::Random;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{slope, variants};

    #[test]
    fn a_crop_of_a_padded_image_is_a_shift_by_whole_pixels() {
        let crops = variants(&Crop { padding: 2 });
        let is_shift = |crop: &Image, right: i64, down: i64| {
            let (image, shape) = (slope(), [crop.height as i64, crop.width as i64]);
            let source = |x: i64, y: i64| {
                let (x, y) = (x - right, y - down);
                let is_inside = (0..shape[1]).contains(&x) && (0..shape[0]).contains(&y);
                if is_inside { image.pixel(x as usize, y as usize)[0] } else { 0 }
            };
            (0..).zip(&crop.levels).all(|(at, level)| *level == source(at % shape[1], at / shape[1]))
        };
        let shifts = || (-2..=2).flat_map(|right| (-2..=2).map(move |down| (right, down)));
        let found: Vec<_> = crops
            .iter()
            .map(|crop| shifts().find(|&(right, down)| is_shift(crop, right, down)).expect("it is a shift"))
            .collect();
        assert!(found.iter().any(|shift| *shift != found[0]), "{found:?}");
    }

    #[test]
    fn a_shift_beyond_the_edge_is_black() {
        assert!(moved(&slope(), [9, 0]).levels.iter().all(|level| *level == 0));
        assert!(moved(&slope(), [0, -6]).levels.iter().all(|level| *level == 0));
    }
}
