//! Tests against the results of Pillow.

use serde::Deserialize;

use super::*;

/// A case of `reference.py`.
#[derive(Debug, Deserialize)]
struct Case {
    from: [usize; 3],
    to: [usize; 2],
    levels: Vec<u8>,
}

/// Returns the noise image that `reference.py` draws.
fn noise([height, width, channels]: [usize; 3]) -> Image {
    let levels = (0..(height * width * channels) as u64).map(|at| ((at * 2_654_435_761) >> 16) as u8);
    Image::new([height, width, channels], levels.collect())
}

#[test]
fn images_are_resized_and_cropped_as_by_pillow() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("reference.json")).unwrap();
    for Case { from, to, levels } in &cases {
        let found = fitted(noise(*from), *to);
        assert_eq!(found.shape(), [to[0], to[1], from[2]]);
        let most = found.levels.iter().zip(levels).map(|(own, other)| own.abs_diff(*other)).max();
        // Pillow rounds between its two passes.
        assert!(most <= Some(2), "{from:?} to {to:?}: by {most:?}\n{:?}\n{levels:?}", found.levels);
    }
    assert_eq!(cases.len(), 24);
}

#[test]
fn the_aspect_ratio_is_kept() {
    // A square in the middle of a wide image stays a square.
    let level =
        |at: usize| if (40..60).contains(&(at % 100)) && (10..30).contains(&(at / 100)) { 255 } else { 0 };
    let wide = Image::new([40, 100, 1], (0..4000).map(level).collect());
    let found = fitted(wide, [20, 20]);
    let bright = |x: usize, y: usize| found.pixel(x, y)[0] > 127;
    let expected = |x: usize, y: usize| (5..15).contains(&x) && (5..15).contains(&y);
    assert!((0..20).all(|x| (0..20).all(|y| bright(x, y) == expected(x, y))), "{found:?}");
}

#[test]
fn an_image_of_the_right_size_is_unchanged_and_extreme_ones_need_little_memory() {
    let image = noise([7, 5, 3]);
    assert_eq!(fitted(image.clone(), [7, 5]), image);
    assert_eq!(kept([30, 40], [3, 4]), [30, 40]);
    for from in [[1, 60_000, 1], [60_000, 1, 3]] {
        let [height, width] = kept([from[0] as u32, from[1] as u32], [64, 64]);
        assert!(height.max(width) <= 16, "{height}x{width}");
        assert_eq!(fitted(noise(from), [64, 64]).shape(), [64, 64, from[2]]);
    }
}

#[test]
fn levels_round_like_f32_round() {
    for level in (0..=25_500).map(|level| level as f32 / 100.0).chain([0.499_999_97]) {
        assert_eq!(rounded(level), level.round() as u8, "{level}");
    }
}
