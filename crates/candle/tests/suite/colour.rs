//! Models trained on colour images in the format of CIFAR-10.

use std::fs;
use std::path::Path;

use unisono_candle::model::ModelKind;
use unisono_candle::{Config, Part, Saved};
use unisono_data::{Kind, Pass, Source};
use unisono_testing::suite::Test;
use unisono_testing::tests;
use unisono_train::{AdamW, NamedRule};

const SIDE: usize = 32;

/// Reproducible pseudorandom numbers.
struct Noise(u32);

impl Noise {
    fn below(&mut self, most: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) % most
    }
}

/// Writes images of three classes. The class is the channel with the highest level, and the sum of a pixel's levels contains no information.
fn write(file: &Path, images: usize, noise: &mut Noise) {
    let mut bytes = Vec::new();
    for _ in 0..images {
        let class = noise.below(3) as u8;
        bytes.push(class);
        let levels: Vec<_> = (0..SIDE * SIDE).map(|_| noise.below(150) as u8).collect();
        for channel in 0..3 {
            let more = if channel == class { 90 } else { 20 };
            bytes.extend(levels.iter().map(|level| level + more));
        }
    }
    fs::write(file, bytes).unwrap();
}

fn settings(directory: &Path, model: ModelKind) -> Config {
    let mut noise = Noise(7);
    write(&directory.join("data_batch_1.bin"), 300, &mut noise);
    write(&directory.join("test_batch.bin"), 100, &mut noise);
    Config {
        epochs: 3,
        batch_size: 16,
        optimizer: NamedRule::new(AdamW::default()),
        weight_decay: 0.0,
        learning_rate: 3e-3,
        augment: Some("mirror,crop".parse().unwrap()),
        hidden: model.eq(&ModelKind::ResNet).then(|| vec![8]),
        ..Config::new(Source::Cifar(directory.to_owned()), model)
    }
}

fn colour_model_accepts_only_colour_images() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("checkpoints");
    let checkpoint_dir = Some(place.clone());
    let settings = Config { epochs: 1, checkpoint_dir, ..settings(directory.path(), ModelKind::Cnn) };
    crate::last(1, &settings);
    let saved = Saved::open(&place).unwrap();
    let held_out = saved.dataset(None).unwrap().test;
    assert_eq!(held_out.len(), 100);
    // Image files with these pixels must have the same classes.
    let samples: Vec<_> = (0..4).collect();
    let batch = held_out.batch(&samples, Pass::Evaluation).unwrap();
    let records = fs::read(directory.path().join("test_batch.bin")).unwrap();
    let files: Vec<_> = samples.iter().map(|sample| directory.path().join(format!("{sample}.png"))).collect();
    for (record, file) in records.chunks(1 + 3 * SIDE * SIDE).zip(&files) {
        let level = |x, y, channel| record[1 + channel * SIDE * SIDE + y as usize * SIDE + x as usize];
        let pixel = |x, y| image::Rgb([level(x, y, 0), level(x, y, 1), level(x, y, 2)]);
        image::RgbImage::from_fn(SIDE as u32, SIDE as u32, pixel).save(file).unwrap();
    }
    let from_files = saved.images(&files).unwrap().batch(&samples, Pass::Evaluation).unwrap();
    assert_eq!(from_files.inputs, batch.inputs);
    let refused = saved.dataset(Some(&Source::Digits)).unwrap_err().to_string();
    assert!(refused.contains("trained on colour images of 32x32 pixels in 10 classes"), "{refused}");
}

fn grey_images_keep_their_original_description() {
    let grey = r#"{"Images":{"height":2,"width":3,"classes":4}}"#;
    let kind = Kind::Images { height: 2, width: 3, channels: 1, classes: 4 };
    assert_eq!(serde_json::to_string(&kind).unwrap(), grey);
    assert_eq!(serde_json::from_str::<Kind>(grey).unwrap(), kind);
}

/// Draws red and blue discs on white in JPEG files of several sizes, in one folder per class.
fn draw_discs(directory: &Path) {
    let mut noise = Noise(5);
    for (class, colour) in [("blue", [0, 0, 255]), ("red", [255, 0, 0])] {
        fs::create_dir_all(directory.join(class)).unwrap();
        for number in 0..100 {
            let [height, width] = [(); 2].map(|()| 32 + 8 * noise.below(3));
            let (radius, x, y) =
                (6 + noise.below(8), width / 2 + noise.below(6), height / 2 + noise.below(6));
            let pixel = |column: u32, row: u32| {
                let far = column.abs_diff(x).pow(2) + row.abs_diff(y).pow(2);
                image::Rgb(if far < radius * radius { colour } else { [255; 3] })
            };
            let image = image::RgbImage::from_fn(width, height, pixel);
            image.save(directory.join(class).join(format!("{number:03}.jpg"))).unwrap();
        }
    }
}

fn default_model_distinguishes_red_and_blue_in_photos_of_several_sizes() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("checkpoints");
    let discs = directory.path().join("discs");
    draw_discs(&discs);
    let checkpoint_dir = Some(place.clone());
    let source = Source::Images(discs.clone());
    let settings = Config {
        hidden: Some(vec![32]),
        checkpoint_dir,
        ..Config::new(source.clone(), Config::default_model(&source))
    };
    let accuracy = crate::last(2, &settings).last.test_accuracy;
    assert!(accuracy >= 0.9, "{accuracy}");

    // The checkpoint contains the size, the colours and the statistics.
    let saved = Saved::open(&place).unwrap();
    assert!(saved.description.schema.as_ref().unwrap().normalization.as_ref().unwrap().mean.len() == 3);
    let evaluated = unisono::threads(1, |mut comm| saved.evaluate(&mut comm, None, Part::Test, &[]).unwrap());
    let tally = evaluated[0].test.tally;
    assert!((tally.accuracy() - accuracy).abs() < 1e-9, "{} and {accuracy}", tally.accuracy());
    let file = discs.join("red/007.jpg");
    let images = saved.images(&[file]).unwrap();
    let batch = images.batch(&[0], Pass::Evaluation).unwrap();
    let dataset = saved.dataset(None).unwrap();
    // Nine of ten blue images are training samples, followed by the red ones.
    assert_eq!(batch.inputs, dataset.train.batch(&[97], Pass::Evaluation).unwrap().inputs);
}

fn convolutions_learn_from_colours() {
    for model in [ModelKind::Cnn, ModelKind::ResNet] {
        let directory = tempfile::tempdir().unwrap();
        let accuracy = crate::last(2, &settings(directory.path(), model)).last.test_accuracy;
        println!("counted: colour: {model}: {accuracy}");
        assert!(accuracy > 0.9, "{model}: {accuracy}");
    }
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        colour_model_accepts_only_colour_images,
        grey_images_keep_their_original_description,
        default_model_distinguishes_red_and_blue_in_photos_of_several_sizes,
        convolutions_learn_from_colours,
    ]
}
