//! Models that learn from colour images, in CIFAR-10's files.

use std::fs;
use std::path::Path;

use unisono_data::{Kind, Pass, Source};
use unisono_testing::suite::Test;
use unisono_testing::tests;
use unisono_train::checkpoint::When;
use unisono_train::model::ModelKind;
use unisono_train::{Checkpoints, OptimizerKind, OptimizerSettings, Saved, Settings};

const SIDE: usize = 32;

/// Numbers that look random, the same each time.
struct Noise(u32);

impl Noise {
    fn below(&mut self, most: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) % most
    }
}

/// Images of three classes: the sum of a pixel's levels tells nothing, but which of them is the highest does.
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

fn settings(directory: &Path, model: ModelKind) -> Settings {
    let mut noise = Noise(7);
    write(&directory.join("data_batch_1.bin"), 1500, &mut noise);
    write(&directory.join("test_batch.bin"), 100, &mut noise);
    Settings {
        epochs: 2,
        batch_size: 16,
        optimizer: OptimizerSettings::new(OptimizerKind::AdamW),
        learning_rate: 3e-3,
        augmentation: "mirror,crop".parse().unwrap(),
        hidden: model.eq(&ModelKind::ResNet).then(|| vec![8]),
        ..Settings::new(Source::Cifar(directory.to_owned()), model)
    }
}

fn a_model_of_colours_takes_colours_alone() {
    let directory = tempfile::tempdir().unwrap();
    let when = When { every_steps: None, every: None };
    let place = directory.path().join("checkpoints");
    let checkpoints = Some(Checkpoints { directory: place.clone(), keep: 1, overwrites: false, when });
    let settings = Settings { epochs: 1, checkpoints, ..settings(directory.path(), ModelKind::Cnn) };
    unisono::threads(1, |mut comm| settings.trainer(&mut comm).unwrap().run(|_| ()).map(drop).unwrap());
    let saved = Saved::open(&place).unwrap();
    let held_out = saved.dataset(None).unwrap().test;
    assert_eq!(held_out.len(), 100);
    // As files: the same pixels, so the same classes.
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

fn grey_images_are_described_as_before_there_was_colour() {
    let grey = r#"{"Images":{"height":2,"width":3,"classes":4}}"#;
    let kind = Kind::Images { height: 2, width: 3, channels: 1, classes: 4 };
    assert_eq!(serde_json::to_string(&kind).unwrap(), grey);
    assert_eq!(serde_json::from_str::<Kind>(grey).unwrap(), kind);
}

fn convolutions_see_colours() {
    for model in [ModelKind::Cnn, ModelKind::ResNet] {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(directory.path(), model);
        let summaries = unisono::threads(2, |mut comm| {
            let trainer = settings.trainer(&mut comm).unwrap();
            trainer.run(|_| ()).unwrap()
        });
        println!("counted: colour: {model}: {}", summaries[0].last.test_accuracy);
        assert!(summaries[0].last.test_accuracy > 0.9, "{model}: {}", summaries[0].last.test_accuracy);
        assert_eq!(summaries[0].parameters_hash, summaries[1].parameters_hash);
    }
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_model_of_colours_takes_colours_alone,
        grey_images_are_described_as_before_there_was_colour,
        convolutions_see_colours,
    ]
}
