//! Synthetic digits that look handwritten, generated from a seed: a data set that needs no files.
//!
//! A digit is a few strokes. Each image distorts them, draws them with a random pen and adds a smudge and noise. Its random stream is keyed by the
//! image's index: image `i` depends neither on the thread that draws it nor on the number of images.

use std::f32::consts::TAU;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use crate::pixels::rounded;
use crate::random::{TEST_DIGIT, TRAIN_DIGIT, keyed_rng};
use crate::{DataError, Dataset, Kind, Options, Schema, StoredSamples};

/// Pixels along each side of an image.
const SIDE: usize = 28;

/// Horizontal and vertical coordinate; the vertical one grows downwards.
type Point = (f32, f32);

/// A stroke of the pen, in a box from (-1, -1) at the top left to (1, 1).
enum Stroke {
    Line(&'static [Point]),
    /// Part of an ellipse: its centre, its radii, and its start and end angles in degrees, clockwise from the right.
    Arc(Point, (f32, f32), (f32, f32)),
}

use Stroke::{Arc, Line};

const GLYPHS: [&[&[Stroke]]; 10] = [
    &[&[Arc((0.0, 0.0), (0.6, 0.95), (-90.0, 270.0))], &[Arc((0.0, 0.0), (0.5, 0.95), (-60.0, 285.0))]],
    &[
        &[Line(&[(0.0, -0.95), (0.0, 0.95)])],
        &[Line(&[(-0.4, -0.5), (0.05, -0.95), (0.05, 0.95)])],
        &[Line(&[(-0.4, -0.55), (0.0, -0.95), (0.0, 0.95)]), Line(&[(-0.45, 0.95), (0.45, 0.95)])],
    ],
    &[
        &[Arc((0.0, -0.4), (0.55, 0.55), (-170.0, 40.0)), Line(&[(0.42, -0.05), (-0.6, 0.95), (0.6, 0.95)])],
        &[
            Arc((-0.05, -0.42), (0.55, 0.53), (-160.0, 55.0)),
            Line(&[(0.27, 0.02), (-0.35, 0.75)]),
            Arc((-0.4, 0.78), (0.18, 0.16), (-60.0, -300.0)),
            Line(&[(-0.31, 0.64), (0.2, 0.9), (0.65, 0.75)]),
        ],
    ],
    &[
        &[Arc((-0.05, -0.47), (0.5, 0.46), (-150.0, 90.0)), Arc((-0.05, 0.46), (0.6, 0.49), (-90.0, 150.0))],
        &[
            Line(&[(-0.5, -0.92), (0.45, -0.92), (-0.05, -0.2)]),
            Arc((-0.05, 0.37), (0.58, 0.57), (-90.0, 145.0)),
        ],
    ],
    &[
        &[Line(&[(0.25, 0.95), (0.25, -0.95), (-0.65, 0.35), (0.65, 0.35)])],
        &[Line(&[(-0.45, -0.9), (-0.5, 0.05), (0.55, 0.05)]), Line(&[(0.4, -0.9), (0.35, 0.95)])],
    ],
    &[&[
        Line(&[(0.55, -0.92), (-0.4, -0.92), (-0.48, -0.1)]),
        Arc((-0.05, 0.35), (0.6, 0.6), (-135.0, 140.0)),
    ]],
    &[
        &[Arc((0.5, 0.35), (1.02, 1.3), (-95.0, -180.0)), Arc((0.0, 0.4), (0.52, 0.55), (0.0, 360.0))],
        &[Line(&[(0.25, -0.95), (-0.4, 0.15)]), Arc((0.0, 0.45), (0.5, 0.5), (0.0, 360.0))],
    ],
    &[
        &[Line(&[(-0.6, -0.9), (0.6, -0.9), (-0.15, 0.95)])],
        &[Line(&[(-0.6, -0.9), (0.6, -0.9), (-0.1, 0.95)]), Line(&[(-0.3, 0.05), (0.5, 0.05)])],
        &[Line(&[(-0.55, -0.55), (-0.55, -0.9), (0.55, -0.9), (0.0, 0.95)])],
    ],
    &[
        &[Arc((0.0, -0.47), (0.45, 0.46), (0.0, 360.0)), Arc((0.0, 0.46), (0.55, 0.49), (0.0, 360.0))],
        &[
            Arc((0.0, -0.5), (0.45, 0.42), (-30.0, -250.0)),
            Line(&[(-0.15, -0.12), (0.4, 0.3)]),
            Arc((0.0, 0.5), (0.5, 0.43), (-30.0, 210.0)),
            Line(&[(-0.42, 0.28), (0.38, -0.7)]),
        ],
    ],
    &[
        &[Arc((0.0, -0.4), (0.5, 0.53), (0.0, 360.0)), Line(&[(0.5, -0.4), (0.35, 0.95)])],
        &[Arc((0.0, -0.42), (0.5, 0.5), (0.0, 360.0)), Arc((-0.55, -0.25), (1.05, 1.2), (-5.0, 80.0))],
    ],
];

pub(super) fn draw(options: &Options) -> Result<Dataset, DataError> {
    let split = |samples, purpose, option| {
        if samples == 0 {
            return Err(DataError::zero(option));
        }
        let mut pixels = vec![0; samples * SIDE * SIDE];
        let images = pixels.par_chunks_exact_mut(SIDE * SIDE).enumerate();
        let labels = images
            .map(|(i, image)| draw_digit(&mut keyed_rng(options.seed, purpose, i as u64), image))
            .collect();
        Ok(StoredSamples::images([SIDE, SIDE, 1], pixels, labels))
    };
    Ok(Dataset {
        kind: Kind::Images { height: SIDE, width: SIDE, channels: 1, classes: GLYPHS.len() },
        train: split(options.train_samples, TRAIN_DIGIT, "the number of training samples")?,
        test: split(options.test_samples, TEST_DIGIT, "the number of test samples")?,
        schema: Schema::default(),
    })
}

fn draw_digit(rng: &mut ChaCha8Rng, image: &mut [u8]) -> u8 {
    let digit = rng.random_range(0..GLYPHS.len());
    let glyph = GLYPHS[digit][rng.random_range(0..GLYPHS[digit].len())];
    let warp = warp(rng);
    let pen = [rng.random_range(0.7..1.7), rng.random_range(0.4..0.9)];

    let mut ink = [0.0; SIDE * SIDE];
    for stroke in glyph {
        let points: Vec<Point> = stroke.points().into_iter().map(&warp).collect();
        draw_line(pen, &points, 1.0, &mut ink);
    }
    for _ in 0..2 {
        let smudge = [random_pixel(rng), random_pixel(rng)];
        draw_line(pen, &smudge, rng.random_range(0.0..0.6), &mut ink);
    }
    expose(rng, &ink, image);
    digit as u8
}

fn random_pixel(rng: &mut ChaCha8Rng) -> Point {
    let mut coordinate = || rng.random_range(0.0..SIDE as f32);
    (coordinate(), coordinate())
}

/// Converts ink to grey levels, with random contrast and noise.
fn expose(rng: &mut ChaCha8Rng, ink: &[f32], image: &mut [u8]) {
    let contrast = rng.random_range(120.0..255.0);
    let noise = rng.random_range(5.0..80.0);
    for (grey, ink) in image.iter_mut().zip(ink) {
        // The sum of two uniform variables approximates a normal one.
        let bell = rng.random::<f32>() + rng.random::<f32>() - 1.0;
        *grey = rounded((ink * contrast + bell * noise).clamp(0.0, 255.0));
    }
}

impl Stroke {
    /// Returns points on the stroke, dense enough to bend smoothly.
    fn points(&self) -> Vec<Point> {
        const STEPS: u8 = 16;
        let steps = (0..=STEPS).map(|step| f32::from(step) / f32::from(STEPS));
        match *self {
            Arc((cx, cy), (rx, ry), (from, to)) => steps
                .map(|t| (from + (to - from) * t).to_radians())
                .map(|angle| (cx + rx * angle.cos(), cy + ry * angle.sin()))
                .collect(),
            Line(corners) => corners
                .array_windows()
                .flat_map(|&[(ax, ay), (bx, by)]| {
                    steps.clone().step_by(4).map(move |t| (ax + (bx - ax) * t, ay + (by - ay) * t))
                })
                .collect(),
        }
    }
}

/// Returns the distortion of one image: a bend, then an affine map to pixels.
fn warp(rng: &mut ChaCha8Rng) -> impl Fn(Point) -> Point + use<> {
    let mut between = |low: f32, high: f32| rng.random_range(low..high);
    // Amplitude, frequency and phase of each coordinate's displacement along the other.
    let bends = [(); 2].map(|()| [between(0.0, 0.15), between(1.0, 3.0), between(0.0, TAU)]);
    let (sin, cos) = between(-0.35, 0.35).sin_cos();
    let shear = between(-0.4, 0.4);
    let (wide, high) = (between(6.0, 10.5), between(7.5, 10.5));
    // The linear part, and the position of the centre in pixels.
    let [row_x, row_y] = [[wide * cos, high * (shear * cos - sin)], [wide * sin, high * (shear * sin + cos)]];
    let (middle_x, middle_y) = (14.0 + between(-2.5, 2.5), 14.0 + between(-2.5, 2.5));
    move |(x, y)| {
        let bend = |[amplitude, frequency, phase]: [f32; 3], along: f32| {
            amplitude * (frequency * along + phase).sin()
        };
        let (x, y) = (x + bend(bends[0], y), y + bend(bends[1], x));
        (middle_x + row_x[0] * x + row_x[1] * y, middle_y + row_y[0] * x + row_y[1] * y)
    }
}

/// Draws a line of `strength` in 0..=1 through `points`. `radius` is half its width, and `blur` half the width of its fading edge, in pixels.
fn draw_line([radius, blur]: [f32; 2], points: &[Point], strength: f32, ink: &mut [f32]) {
    let reach = radius + blur;
    // Visits only pixels near a segment, since most of an image is blank.
    let near = |a: f32, b: f32| {
        let (low, high) = (a.min(b) - reach, a.max(b) + reach + 1.0);
        (low.clamp(0.0, SIDE as f32) as usize)..(high.clamp(0.0, SIDE as f32) as usize)
    };
    for &[a, b] in points.array_windows() {
        for row in near(a.1, b.1) {
            for column in near(a.0, b.0) {
                let distance = distance((column as f32, row as f32), a, b);
                let cover = ((reach - distance) / (2.0 * blur)).clamp(0.0, 1.0);
                let pixel = &mut ink[row * SIDE + column];
                *pixel = pixel.max(cover * strength);
            }
        }
    }
}

/// Returns the distance of `p` from the segment between `a` and `b`.
fn distance(p: Point, a: Point, b: Point) -> f32 {
    let (ab, ap) = ((b.0 - a.0, b.1 - a.1), (p.0 - a.0, p.1 - a.1));
    let length = ab.0 * ab.0 + ab.1 * ab.1;
    let along = ((ap.0 * ab.0 + ap.1 * ab.1) / length.max(f32::MIN_POSITIVE)).clamp(0.0, 1.0);
    // Equal to `hypot`, without a function call for each pixel.
    let (x, y) = (f64::from(ap.0 - along * ab.0), f64::from(ap.1 - along * ab.1));
    (x * x + y * y).sqrt() as f32
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::batch::{Pass, Values};
    use crate::split::Split;

    fn images(seed: u64, train_samples: usize, test_samples: usize) -> (Arc<dyn Split>, Arc<dyn Split>) {
        let options = Options { seed, train_samples, test_samples, ..Options::default() };
        let data = draw(&options).unwrap();
        (data.train, data.test)
    }

    fn first(split: &Arc<dyn Split>, samples: usize) -> (Vec<u8>, Vec<u32>) {
        let all: Vec<_> = (0..samples).collect();
        let (Values::Levels(levels), labels) = split.gather(&all, Pass::Evaluation).unwrap() else {
            panic!("not images")
        };
        (levels, labels)
    }

    #[test]
    fn images_depend_only_on_the_seed() {
        let of = |seed| {
            draw(&Options { seed, train_samples: 30, test_samples: 10, ..Options::default() }).unwrap()
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn an_image_does_not_depend_on_the_number_of_images() {
        let (few, many) = (images(1, 5, 9).0, images(1, 50, 1).0);
        assert_eq!(first(&few, 5), first(&many, 5));
    }

    #[test]
    fn an_image_does_not_depend_on_the_number_of_threads() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        assert_eq!(pool.install(|| first(&images(1, 40, 20).0, 40)), first(&images(1, 40, 20).0, 40));
    }

    #[test]
    fn no_image_is_in_both_splits() {
        let (train, test) = images(1, 10, 10);
        assert_ne!(first(&train, 10), first(&test, 10));
    }

    #[test]
    fn every_digit_is_drawn_with_enough_ink() {
        let (train, _) = images(1, 500, 1);
        let (pixels, labels) = first(&train, 500);
        for digit in 0..GLYPHS.len() as u32 {
            assert!(labels.iter().filter(|&&label| label == digit).count() > 20, "{digit} is rare");
        }
        for image in pixels.chunks_exact(SIDE * SIDE) {
            assert!(image.iter().filter(|&&grey| grey > 80).count() >= 15);
        }
    }

    #[test]
    fn a_split_without_samples_is_refused() {
        let none = Options { test_samples: 0, ..Options::default() };
        let message = draw(&none).unwrap_err().to_string();
        assert_eq!(message, "the number of test samples is 0: it must be at least 1");
    }
}
