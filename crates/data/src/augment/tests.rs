//! Tests of lists of transforms, and of the catalogue.

use super::*;
use crate::source::Source;

fn training(epoch: u64) -> Pass {
    Pass::Training { seed: 7, epoch }
}

/// Returns a colour image of 10x8 pixels whose levels differ.
fn colours() -> Image {
    Image::new([10, 8, 3], (0..240_u32).map(|at| (at * 37 % 251) as u8).collect())
}

#[test]
fn lists_round_trip_through_text() {
    for names in ["crop:4", "affine:2:10,mirror", "mirror,mirror,jitter:40,erase:50"] {
        assert_eq!(names.parse::<Augmentation>().unwrap().to_string(), names);
    }
    let all: Vec<_> = CATALOGUE.iter().map(|(name, ..)| *name).collect();
    let all: Augmentation = all.join(",").parse().unwrap();
    assert_eq!(all.to_string(), "affine:2:10,crop:4,mirror,jitter:40,erase:50");
    for (names, why) in [
        ("", "unknown transform ``: expected `affine`, `crop`, `mirror`, `jitter`, `erase`"),
        ("crop,flip", "unknown transform `flip`"),
        ("crop:x", "unknown transform `crop:x`"),
        ("crop:1:2", "transform `crop` has 2 amounts: expected 1, or none"),
        ("mirror:1", "transform `mirror` has 1 amounts: expected 0, or none"),
        ("mirror,erase:101", "transform `erase:101` erases 101 %: expected at most 100"),
    ] {
        let message = names.parse::<Augmentation>().unwrap_err().to_string();
        assert!(message.contains(why), "{message}");
    }
}

#[test]
fn each_sample_and_epoch_has_its_own_variant_only_in_training() {
    let all: Augmentation = "affine,crop,mirror,jitter,erase".parse().unwrap();
    let of = |pass, sample| all.apply(colours(), pass, sample);
    assert_eq!(of(training(1), 3), of(training(1), 3));
    assert_ne!(of(training(1), 3), of(training(2), 3));
    assert_ne!(of(training(1), 3), of(training(1), 4));
    assert_eq!(of(Pass::Evaluation, 3), colours());
    assert_eq!(Augmentation::default().apply(colours(), training(1), 3), colours());
}

#[test]
#[should_panic(expected = "the transform `cut` has changed the shape of an image")]
fn a_transform_must_keep_the_shape() {
    struct Cut;
    impl Transform for Cut {
        fn name(&self) -> String {
            "cut".into()
        }
        fn apply(&self, image: Image, _: &mut Random) -> Image {
            Image { height: image.height - 1, ..image }
        }
    }
    Augmentation::new(vec![Arc::new(Cut)]).apply(colours(), training(1), 0);
}

/// A resumed run needs the same variants as before its checkpoint.
#[test]
fn the_usual_augmentations_keep_their_bits_across_versions() {
    let hash = |source: Source| {
        let usual = source.usual_augmentation();
        let levels: Vec<u8> =
            (0..50).flat_map(|sample| usual.apply(colours(), training(3), sample).levels).collect();
        xxhash_rust::xxh3::xxh3_64(&levels)
    };
    let found = [Source::Cifar("".into()), Source::Images("".into())].map(hash);
    assert_eq!(found, [0xbda6_105b_1aff_ad7c, 0x267a_a9d2_12f5_5c86], "{found:x?}");
}
