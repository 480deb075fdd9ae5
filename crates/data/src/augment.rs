//! Random augmentation of images, which reduces overfitting.

use image::{DynamicImage, ImageBuffer, Pixel};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// The bounds of random shifts, rotations, crops and mirroring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Augmentation {
    /// The maximum shift in each direction, in pixels. Pixels from outside repeat the edge.
    pub shift_pixels: u32,
    /// The maximum rotation either way, in degrees.
    pub rotation_degrees: u32,
    /// The image is cropped to its size after so many black pixels were added on each side.
    pub crop_padding: u32,
    /// Whether to mirror every other image horizontally. Wrong for digits and letters.
    pub mirror: bool,
}

impl Augmentation {
    /// A variant of `image`, of the same size, in 8-bit grey or colour.
    pub(super) fn apply(self, image: &DynamicImage, rng: &mut ChaCha8Rng) -> DynamicImage {
        match image {
            DynamicImage::ImageLuma8(grey) => self.of_buffer(grey, rng).into(),
            DynamicImage::ImageRgb8(colours) => self.of_buffer(colours, rng).into(),
            image => self.of_buffer(&image.to_rgb8(), rng).into(),
        }
    }

    fn of_buffer<P: Pixel<Subpixel = u8>>(self, image: &Buffer<P>, rng: &mut ChaCha8Rng) -> Buffer<P> {
        let motion = Motion::drawn(self, rng);
        let padding = i64::from(self.crop_padding);
        let mut offset = || if padding > 0 { rng.random_range(-padding..=padding) } else { 0 };
        let offset = [offset(), offset()];
        // By whole pixels, nothing has to be interpolated.
        if self.shift_pixels == 0 && self.rotation_degrees == 0 {
            return cropped(image, motion.is_mirrored, offset);
        }
        let moved = motion.applied(image);
        if offset == [0, 0] { moved } else { cropped(&moved, false, offset) }
    }
}

/// A shift, a rotation about the middle, and whether the image is mirrored.
#[derive(Default)]
struct Motion {
    right: f32,
    down: f32,
    radians: f32,
    is_mirrored: bool,
}

impl Motion {
    /// A random one within the bounds; draws nothing where nothing may move.
    fn drawn(bounds: Augmentation, rng: &mut ChaCha8Rng) -> Self {
        let (shift, turn) = (bounds.shift_pixels as f32, bounds.rotation_degrees as f32);
        if shift == 0.0 && turn == 0.0 && !bounds.mirror {
            return Self::default();
        }
        Self {
            right: rng.random_range(-shift..=shift),
            down: rng.random_range(-shift..=shift),
            radians: rng.random_range(-turn..=turn).to_radians(),
            is_mirrored: bounds.mirror && rng.random(),
        }
    }

    fn applied<P: Pixel<Subpixel = u8>>(&self, image: &Buffer<P>) -> Buffer<P> {
        let (sin, cos) = self.radians.sin_cos();
        let middle = [(image.width() - 1) as f32 / 2.0, (image.height() - 1) as f32 / 2.0];
        // The source position of each pixel: the inverse transformation.
        ImageBuffer::from_fn(image.width(), image.height(), |x, y| {
            let (x, y) = (x as f32 - middle[0] - self.right, y as f32 - middle[1] - self.down);
            let (x, y) = (cos * x + sin * y, cos * y - sin * x);
            let x = if self.is_mirrored { -x } else { x };
            between(image, x + middle[0], y + middle[1])
        })
    }
}

type Buffer<P> = ImageBuffer<P, Vec<u8>>;

/// Mirrored or not, then moved to the right and down by whole pixels; what comes from outside is black. Copies whole rows.
fn cropped<P: Pixel<Subpixel = u8>>(
    image: &Buffer<P>,
    is_mirrored: bool,
    [right, down]: [i64; 2],
) -> Buffer<P> {
    let (width, height) = (i64::from(image.width()), i64::from(image.height()));
    let channels = usize::from(P::CHANNEL_COUNT);
    let row_bytes = width as usize * channels;
    // The part of a row that stays inside, and its place before.
    let [to, from] = [right, -right].map(|offset| offset.clamp(0, width) as usize * channels);
    let inside = row_bytes - to.max(from);
    let mut levels = vec![0; row_bytes * height as usize];
    for (y, target) in (0..).zip(levels.chunks_exact_mut(row_bytes)) {
        let above = y - down;
        if !(0..height).contains(&above) {
            continue;
        }
        let source = &image.as_raw()[above as usize * row_bytes..][..row_bytes];
        let target = &mut target[to..][..inside];
        if is_mirrored {
            // From the other side: the first pixel here is the last but `from` there.
            let source = &source[row_bytes - from - inside..][..inside];
            let pixels = target.chunks_exact_mut(channels).zip(source.rchunks_exact(channels));
            pixels.for_each(|(target, pixel)| target.copy_from_slice(pixel));
        } else {
            target.copy_from_slice(&source[from..][..inside]);
        }
    }
    ImageBuffer::from_raw(image.width(), image.height(), levels).expect("an image of the same size")
}

/// The bilinearly interpolated pixel at a point.
fn between<P: Pixel<Subpixel = u8>>(image: &Buffer<P>, x: f32, y: f32) -> P {
    let (x, y) = (x.clamp(0.0, (image.width() - 1) as f32), y.clamp(0.0, (image.height() - 1) as f32));
    let (left, top) = (x as u32, y as u32);
    let (right, bottom) = ((left + 1).min(image.width() - 1), (top + 1).min(image.height() - 1));
    let (along, down) = (x - left as f32, y - top as f32);
    let mix = |a: u8, b: u8, share: f32| f32::from(a) + (f32::from(b) - f32::from(a)) * share;
    let corners = [(left, top), (right, top), (left, bottom), (right, bottom)];
    let corners = corners.map(|(x, y)| image.get_pixel(x, y).channels());
    let mut pixel = *image.get_pixel(left, top);
    for (channel, level) in pixel.channels_mut().iter_mut().enumerate() {
        let [a, b, c, d] = corners.map(|corner| corner[channel]);
        let (upper, lower) = (mix(a, b, along), mix(c, d, along));
        *level = rounded(upper + (lower - upper) * down);
    }
    pixel
}

/// A level to the nearest whole one, a half up. As `f32::round`, which is a call into a library on many processors.
fn rounded(level: f32) -> u8 {
    let whole = level as u8;
    whole + u8::from(level - f32::from(whole) >= 0.5)
}

#[cfg(test)]
mod tests {
    use image::{GrayImage, Luma, Rgb, RgbImage};

    use super::*;
    use crate::random::rng_of;

    fn image() -> GrayImage {
        GrayImage::from_fn(9, 6, |x, y| Luma([(20 * x + 3 * y) as u8]))
    }

    fn variants(augmentation: Augmentation) -> Vec<GrayImage> {
        (0..20).map(|sample| augmentation.of_buffer(&image(), &mut rng_of([1, 2, 3, sample]))).collect()
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
        let some = Augmentation { shift_pixels: 1, rotation_degrees: 5, ..Augmentation::default() };
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
        let turned = GrayImage::from_fn(5, 5, |x, y| between(&square, y as f32, x as f32));
        assert_eq!(turned.get_pixel(0, 4).0, [200]);
        assert_eq!(between(&square, 1.5, 2.0).0, [75]);
        assert_eq!(between(&square, -3.0, 9.0).0, [0]);
    }

    #[test]
    fn colours_move_together() {
        let colours =
            RgbImage::from_fn(9, 6, |x, y| Rgb([(20 * x + 3 * y) as u8, 7, (10 * x + 5 * y) as u8]));
        let some = Augmentation { shift_pixels: 2, rotation_degrees: 9, crop_padding: 3, mirror: true };
        for sample in 0..20 {
            let random = || rng_of([1, 2, 3, sample]);
            let moved = some.of_buffer(&colours, &mut random());
            let red = some.of_buffer(&image(), &mut random());
            assert!(moved.pixels().zip(red.pixels()).all(|(colour, red)| colour.0[0] == red.0[0]));
            assert!(moved.pixels().all(|colour| colour.0[1] == 7 || colour.0 == [0, 0, 0]));
        }
    }

    #[test]
    fn a_mirrored_crop_is_a_crop_of_the_mirrored_image() {
        let mirrored = image::imageops::flip_horizontal(&image());
        for (right, down) in (-10..=10).flat_map(|right| (-7..=7).map(move |down| (right, down))) {
            let crop = cropped(&image(), true, [right, down]);
            assert_eq!(crop, cropped(&mirrored, false, [right, down]), "{right} right, {down} down");
        }
    }

    #[test]
    fn levels_are_rounded_as_usual() {
        for level in (0..=25_500).map(|level| level as f32 / 100.0).chain([0.499_999_97]) {
            assert_eq!(rounded(level), level.round() as u8, "{level}");
        }
    }

    #[test]
    fn a_crop_of_a_padded_image_is_a_shift_by_whole_pixels() {
        let crops = variants(Augmentation { crop_padding: 2, ..Augmentation::default() });
        let is_shift = |crop: &GrayImage, right: i64, down: i64| {
            let source = |x: u32, y: u32| {
                let place = (u32::try_from(i64::from(x) - right), u32::try_from(i64::from(y) - down));
                let (Ok(x), Ok(y)) = place else { return Luma([0]) };
                image().get_pixel_checked(x, y).copied().unwrap_or(Luma([0]))
            };
            crop.enumerate_pixels().all(|(x, y, pixel)| *pixel == source(x, y))
        };
        let shifts = || (-2..=2).flat_map(|right| (-2..=2).map(move |down| (right, down)));
        let found: Vec<_> = crops
            .iter()
            .map(|crop| shifts().find(|&(right, down)| is_shift(crop, right, down)).expect("it is a shift"))
            .collect();
        assert!(found.iter().any(|shift| *shift != found[0]), "{found:?}");
    }
}
