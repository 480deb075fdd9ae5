//! Predicted classes of samples and image files.

use std::fs;
use std::path::Path;

use unisono_candle::Config;
use unisono_candle::model::ModelKind;
use unisono_data::{Pass, Source, Values};

use crate::{digits, few_digits::SAMPLES};

use super::{DIGITS, Run, objects, refused, stdout, trained, unisono};
use unisono_testing::suite::Test;
use unisono_testing::tests;

fn predictions_are_what_was_measured() {
    let Run { directory, summary } = &*DIGITS;
    let rows = objects("predict", directory, &["--data", digits()]);
    let [_, held_out] = SAMPLES;
    assert_eq!(rows.len(), held_out);
    let right = rows.iter().filter(|row| row["class"] == row["label"]).count();
    assert_eq!(Some(right as f64 / held_out as f64), summary["test_accuracy"].as_f64());
    for (index, row) in rows.iter().enumerate() {
        assert_eq!((row["split"].as_str(), row["index"].as_u64()), (Some("test"), Some(index as u64)));
        let probability = row["probability"].as_f64().unwrap();
        assert!((0.1..=1.0).contains(&probability), "the highest of ten: {row}");
    }

    let all = stdout(
        "predict",
        directory,
        &["--data", digits(), "--split", "all", "--limit", &(held_out + 3).to_string(), "--format", "csv"],
    );
    let lines: Vec<_> = all.lines().collect();
    assert_eq!(
        (lines.len(), lines[0]),
        (held_out + 4, "split,index,class,probability,label,class_name,label_name")
    );
    for (line, row) in lines[1..].iter().zip(&rows) {
        let field = |name| row[name].to_string();
        let expected = ["index", "class", "probability", "label", "class", "label"].map(field).join(",");
        assert_eq!(*line, format!("test,{expected}"));
    }
    assert!(
        lines[held_out + 1].starts_with("train,0,") && lines[held_out + 3].starts_with("train,2,"),
        "{:?}",
        &lines[held_out..]
    );
}

/// Generated digits are drawn with the seed of the run.
fn generated_digits_are_predicted_as_measured() {
    let directory = tempfile::tempdir().unwrap();
    let settings = Config {
        epochs: 1,
        hidden: Some(vec![8]),
        batch_size: 500,
        seed: 3,
        checkpoint_dir: Some(directory.path().into()),
        ..Config::new(Source::Digits, ModelKind::Mlp)
    };
    let summary = unisono::threads(1, |mut comm| settings.trainer(&mut comm).unwrap().run(|_| ()).unwrap());
    let rows = objects("predict", directory.path(), &["--data", "digits"]);
    let right = rows.iter().filter(|row| row["class"] == row["label"]).count();
    assert_eq!(right as f64 / rows.len() as f64, summary[0].last.test_accuracy);
}

fn ranks_share_predictions_and_rank_0_writes_them() {
    let directory = DIGITS.directory.as_path();
    for format in ["csv", "table"] {
        let predicted = |more: &[&str]| {
            let arguments = ["--data", digits(), "--split", "all", "--limit", "1400", "--format", format];
            stdout("predict", directory, &[&arguments[..], more].concat())
        };
        let alone = predicted(&[]);
        for threads in ["2", "3"] {
            assert!(predicted(&["--threads", threads]) == alone, "{format}, {threads} ranks");
        }
    }
}

/// Writes digits as PNG files, in a folder for each class.
fn png_folders(directory: &Path) {
    let dataset = unisono_data::load(
        &Source::Digits,
        &unisono_data::Options { train_samples: 1, test_samples: 100, ..unisono_data::Options::default() },
    )
    .unwrap();
    let all: Vec<_> = (0..dataset.test.len()).collect();
    let (Values::Levels(pixels), labels) = dataset.test.gather(&all, Pass::Evaluation).unwrap() else {
        panic!("digits are images")
    };
    let size = pixels.len() / labels.len();
    let side = size.isqrt() as u32;
    for part in ["train", "test"] {
        for (index, (pixels, label)) in pixels.chunks_exact(size).zip(&labels).take(100).enumerate() {
            let folder = directory.join(part).join(label.to_string());
            fs::create_dir_all(&folder).unwrap();
            let image = image::GrayImage::from_raw(side, side, pixels.to_vec()).unwrap();
            image.save(folder.join(format!("{index:03}.png"))).unwrap();
        }
    }
}

fn an_image_file_is_taken_for_what_it_is_in_a_data_set() {
    let directory = tempfile::tempdir().unwrap();
    png_folders(directory.path());
    let source = format!("images:{}", directory.path().display());
    let checkpoint = DIGITS.directory.as_path();
    let samples = objects("predict", checkpoint, &["--data", &source]);
    assert_eq!(samples.len(), 100);

    let mut files = Vec::new();
    for class in 0..10 {
        let folder = fs::read_dir(directory.path().join(format!("test/{class}"))).unwrap();
        let mut own: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
        own.sort();
        files.extend(own.into_iter().map(|path| path.display().to_string()));
    }
    let mut arguments = vec!["--image"];
    arguments.extend(files.iter().map(String::as_str));
    let images = objects("predict", checkpoint, &arguments);
    assert_eq!(images.len(), 100);
    for ((image, sample), file) in images.iter().zip(&samples).zip(&files) {
        assert_eq!((&image["class"], &image["probability"]), (&sample["class"], &sample["probability"]));
        assert_eq!(image["image"], **file);
    }
    assert!(images.iter().any(|image| image["class"] != images[0]["class"]), "not all are the same");
    let shared = objects("predict", checkpoint, &[&arguments[..], &["--threads", "2"]].concat());
    assert_eq!(images, shared);

    // A file may have another size.
    let large = directory.path().join("large.png");
    image::RgbImage::from_pixel(90, 50, image::Rgb([0, 40, 90])).save(&large).unwrap();
    assert_eq!(objects("predict", checkpoint, &["--image", large.to_str().unwrap()]).len(), 1);

    let broken = directory.path().join("broken.png");
    fs::write(&broken, "no image").unwrap();
    refused(
        "predict",
        checkpoint,
        &["--image", broken.to_str().unwrap()],
        &["broken.png", "expected PNG, JPEG, WebP, BMP or GIF"],
    );
    refused("predict", checkpoint, &["--image", "missing.png"], &["cannot read `missing.png`"]);
    // The second rank's first file, after 256 files of the first rank.
    let mut late = vec![files[0].as_str(); 256];
    late.extend(["missing.png", &files[1]]);
    let (many, said) = ([&["--threads", "2", "--image"], &late[..]].concat(), ["cannot read `missing.png`"]);
    refused("predict", checkpoint, &many, &said);
    let ended = unisono("predict", checkpoint, &many);
    assert_eq!(ended.stdout.lines().count(), 256, "what came before it is written");
}

/// Returns an array as NumPy writes it.
fn npy(descr: &str, shape: &str, numbers: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    let header = format!("{header:117}\n");
    [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), numbers].concat()
}

fn rows_of_an_array_have_labels() {
    let directory = tempfile::tempdir().unwrap();
    let arrays = directory.path().join("arrays");
    fs::create_dir(&arrays).unwrap();
    let rows: Vec<u8> = (0..80_u8).flat_map(|number| f32::from(number % 7).to_le_bytes()).collect();
    let labels: Vec<u8> = (0..40).map(|row| row % 2).collect();
    fs::write(arrays.join("x_train.npy"), npy("<f4", "(40, 2)", &rows)).unwrap();
    fs::write(arrays.join("y_train.npy"), npy("|u1", "(40,)", &labels)).unwrap();
    let data = format!("npy:{}", arrays.display());
    let source = Source::Npy(arrays);
    trained(directory.path(), &Config { batch_size: 2, ..Config::new(source, ModelKind::Mlp) });
    let rows = objects("predict", directory.path(), &["--data", &data]);
    assert!(rows.len() == 4 && rows.iter().all(|row| row["label"].is_number()), "{rows:?}");
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        predictions_are_what_was_measured,
        generated_digits_are_predicted_as_measured,
        ranks_share_predictions_and_rank_0_writes_them,
        an_image_file_is_taken_for_what_it_is_in_a_data_set,
        rows_of_an_array_have_labels,
    ]
}
