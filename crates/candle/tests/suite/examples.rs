//! The examples run.

use std::collections::HashMap;
use std::f64::consts::TAU;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use image::{Rgb, RgbImage};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use unisono_testing::launch::{example, example_with};
use unisono_testing::suite::Test;
use unisono_testing::tests;

/// Runs an example on two ranks with these files.
fn run(name: &str, files: &[&Path]) -> String {
    let arguments: Vec<_> = files.iter().map(|file| file.to_str().expect("a path in UTF-8")).collect();
    example_with(name, 2, &arguments)
}

/// Returns the number after `label` in the output of an example.
fn number(said: &str, label: &str) -> f64 {
    let after = said.split_once(label).map(|(_, after)| after.split([' ', ',', '\n']).next());
    after.flatten().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no {label} in {said}"))
}

fn data_parallel() {
    let said = example("data_parallel", 2);
    assert!(said.contains("2 ranks: accuracy 9"), "{said}");
}

fn pipeline() {
    let said = example("pipeline", 2);
    assert!(said.contains("2 ranks in pipelines of 2: loss "), "{said}");
}

/// The model learns a smooth function of two columns. Its error is a tenth of the variance, which is 0.6.
fn regression() {
    let mut table = "x,y,value\n".to_owned();
    for row in 0..1000 {
        let (x, y) = (f64::from(row * 37 % 101) / 101.0, f64::from(row * 53 % 97) / 97.0);
        writeln!(table, "{x},{y},{}", (6.0 * x).sin() + y * y).expect("a string takes everything");
    }
    let directory = tempfile::tempdir().expect("there is a directory");
    let path = directory.path().join("table.csv");
    fs::write(&path, table).expect("it can be written");
    let said = run("regression", &[&path]);
    assert!(number(&said, "epoch 40: squared error ") < 0.06, "{said}");
}

/// Rings around a point, which no linear model separates. The largest class has half of the rows.
fn mlp() {
    let mut table = "angle,x,y,ring\n".to_owned();
    for row in 0..1000_u32 {
        let (angle, radius) = (f64::from(row * 37 % 101) / 101.0 * TAU, f64::from(row * 53 % 97) / 32.0);
        let ring = ["near", "middle", "far", "far"][radius as usize];
        let (x, y) = (radius * angle.cos(), 900.0 * radius * angle.sin());
        writeln!(table, "{angle},{x},{y},{ring}").expect("a string takes everything");
    }
    let directory = tempfile::tempdir().expect("there is a directory");
    let path = directory.path().join("rings.csv");
    fs::write(&path, table).expect("it can be written");
    let said = run("mlp", &[&path]);
    assert!(number(&said, "rank 0 of 2: accuracy ") >= 85.0, "{said}");
}

/// Photos of five sizes in two formats show bright discs or crosses, in any colour and position.
fn images() {
    let directory = tempfile::tempdir().expect("there is a directory");
    for number in 0..120_u32 {
        let is_disc = number % 2 == 0;
        let [width, height] = [[36, 48], [48, 36], [33, 33], [60, 44], [40, 64]][number as usize % 5];
        let (x, y) = (width as i32 / 2 + number as i32 % 7 - 3, height as i32 / 2 + number as i32 % 5 - 2);
        let size = width.min(height) as i32 / 3;
        let colour =
            Rgb([number * 37 % 100 + 155, number * 53 % 156 + 100, number * 71 % 256].map(|c| c as u8));
        let photo = RgbImage::from_fn(width, height, |column, row| {
            let (across, down) = ((column as i32 - x).abs(), (row as i32 - y).abs());
            let disc = across * across + down * down < size * size;
            let cross = across.min(down) < 3 && across.max(down) < size;
            if if is_disc { disc } else { cross } { colour } else { Rgb([(number % 60) as u8; 3]) }
        });
        let folder = directory.path().join(if is_disc { "disc" } else { "cross" });
        fs::create_dir_all(&folder).expect("it can be made");
        let name = format!("{number:03}.{}", if number % 3 == 0 { "jpg" } else { "png" });
        photo.save(folder.join(name)).expect("it can be written");
    }
    let said = run("images", &[directory.path()]);
    assert!(number(&said, "rank 0 of 2: accuracy ") >= 90.0, "{said}");
}

/// Writes a model of GPT-2's form with random weights, under Hugging Face's names.
fn write_gpt2(folder: &Path, vocabulary: usize) {
    let config = serde_json::json!({
        "model_type": "gpt2", "vocab_size": vocabulary, "n_positions": 80, "n_embd": 48, "n_head": 4, "n_layer": 2,
    });
    fs::write(folder.join("config.json"), config.to_string()).expect("it can be written");
    let mut arrays = HashMap::new();
    let mut add = |name: String, shape: &[usize]| {
        let array = match name.rsplit_once('.') {
            Some((_, "bias")) => Tensor::zeros(shape, DType::F32, &Device::Cpu),
            _ if shape.len() == 1 => Tensor::ones(shape, DType::F32, &Device::Cpu),
            // Weights are often published in this type.
            _ => {
                Tensor::randn(0_f32, 0.05, shape, &Device::Cpu).and_then(|array| array.to_dtype(DType::BF16))
            }
        };
        arrays.insert(format!("transformer.{name}"), array.expect("there is memory"));
    };
    add("wte.weight".to_owned(), &[vocabulary, 48]);
    add("wpe.weight".to_owned(), &[80, 48]);
    for block in 0..2 {
        for (layer, [inputs, outputs]) in [
            ("attn.c_attn", [48, 144]),
            ("attn.c_proj", [48, 48]),
            ("mlp.c_fc", [48, 192]),
            ("mlp.c_proj", [192, 48]),
        ] {
            add(format!("h.{block}.{layer}.weight"), &[inputs, outputs]);
            add(format!("h.{block}.{layer}.bias"), &[outputs]);
        }
        for part in ["ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias"] {
            add(format!("h.{block}.{part}"), &[48]);
        }
    }
    add("ln_f.weight".to_owned(), &[48]);
    add("ln_f.bias".to_owned(), &[48]);
    candle_core::safetensors::save(&arrays, folder.join("model.safetensors")).expect("it can be written");
}

/// A run that starts with the weights of an earlier run is better at its start than the earlier run at its end.
fn gpt2() {
    let directory = tempfile::tempdir().expect("there is a directory");
    let (folder, text) = (directory.path().join("model"), directory.path().join("text"));
    fs::create_dir(&folder).expect("it can be made");
    let line =
        |number: u32| format!("{} times {} is {}.\n", number % 10, number % 7, number % 10 * (number % 7));
    let lines: String = (0..900).map(line).collect();
    fs::write(&text, &lines).expect("it can be written");

    let mut tokenizer = tokenizers::Tokenizer::new(BPE::default());
    tokenizer.with_pre_tokenizer(Some(ByteLevel::default()));
    let alphabet = ByteLevel::alphabet().into_iter().collect();
    let trainer = BpeTrainer::builder().vocab_size(300).show_progress(false).initial_alphabet(alphabet);
    let mut trainer = TrainerWrapper::from(trainer.build());
    tokenizer.train(&mut trainer, [lines].into_iter()).expect("it is text");
    tokenizer.save(folder.join("tokenizer.json"), false).expect("it can be written");
    let vocabulary = tokenizer.get_vocab_size(true);
    write_gpt2(&folder, vocabulary);

    // A high rate, because there are few steps.
    let rate = Path::new("0.001");
    let first = run("gpt2", &[&folder, &text, rate]);
    let tuned = fs::read_dir(folder.join("tuned")).expect("there is a checkpoint");
    let tuned = tuned.map(|entry| entry.expect("it can be listed").path()).find(|path| path.is_dir());
    let tuned = tuned.expect("a checkpoint is a directory").join("parameters.safetensors");
    fs::rename(tuned, folder.join("model.safetensors")).expect("it can be moved");
    fs::remove_dir_all(folder.join("tuned")).expect("it can be removed");
    let second = run("gpt2", &[&folder, &text, rate]);
    let [before, after] = [&first, &second].map(|said| number(said, "rank 0: loss "));
    let random = (vocabulary as f64).ln();
    assert!(before < 0.9 * random && after < 0.9 * before, "{vocabulary} tokens: {first}{second}");
}

pub(crate) fn tests() -> Vec<Test> {
    tests![data_parallel, gpt2, images, mlp, pipeline, regression]
}
