//! Tests of single transforms.

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

#[test]
fn some_images_are_mirrored_exactly_and_the_others_are_unchanged() {
    let (variants, image) = (variants(&Mirror), slope());
    let level = |at: usize| image.pixel(image.width - 1 - at % image.width, at / image.width)[0];
    let mirrored = Image { levels: (0..image.levels.len()).map(level).collect(), ..image.clone() };
    let count = variants.iter().filter(|&variant| *variant == mirrored).count();
    assert!((1..20).contains(&count), "{count} of 20 were mirrored");
    assert!(variants.iter().all(|variant| *variant == mirrored || *variant == image));
}

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
