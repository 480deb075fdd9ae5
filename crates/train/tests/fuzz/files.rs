//! Readers of files: data sets and checkpoints.

use std::fs;
use std::path::{Path, PathBuf};

use image::ImageFormat;
use unisono_data::{Options, Pass, Source};
use unisono_train::checkpoint::{self, Checkpoint, CheckpointError, Store, Tensor};
use xxhash_rust::xxh3::xxh3_64;

use crate::mutate::Corpus;
use crate::reader::Reader;
use crate::seeds;

/// The memory limit of readers of small files: a hundred times the size of the largest file.
const BOUND_BYTES: usize = 32 << 20;

/// The temporary folder of a reader.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        // On a disk, writing would take a hundred times as long as reading.
        Self(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap())
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    fn path(&self) -> PathBuf {
        self.0.path().into()
    }
}

/// Loads a data set and some of its samples.
fn load(source: &Source) -> Result<(), String> {
    let options = Options { context: 8, ..Options::default() };
    let data = unisono_data::load(source, &options).map_err(|error| error.to_string())?;
    for split in [&data.train, &data.test] {
        assert!(!split.is_empty(), "a data set has samples");
        let samples = [0, split.len() / 2, split.len() - 1];
        let batch = split.batch(&samples, Pass::Evaluation).map_err(|error| error.to_string())?;
        assert!(!batch.targets.is_empty());
        split.batch(&samples, Pass::Training { seed: 1, epoch: 2 }).map_err(|error| error.to_string())?;
    }
    Ok(())
}

pub fn readers() -> Vec<Reader> {
    let file = |name, short, corpus, file: &'static str, source: fn(PathBuf) -> Source| {
        let folder = Folder::new();
        let read = Box::new(move |input: &[u8]| load(&source(folder.file(file, input))));
        Reader { name, short, bound_bytes: BOUND_BYTES, corpus, read }
    };
    let text = |length| ('a'..='z').cycle().take(length).collect::<String>().into_bytes();
    let texts = Corpus::new(vec![text(200), text(1000), "häßlich ".repeat(40).into()], &["é", "\u{10ffff}"]);
    let tables = [seeds::csv(25), seeds::csv(10).replace('\n', "\r\n"), "a,b\n1,2\n".into()];
    let words = ["\"", ",", "\n", "\r\n", "nan", "inf", "1e39", "\u{feff}", "-0", "\"\""];
    let tables = Corpus::new(tables.map(String::into_bytes).into(), words_of(words));
    vec![
        idx("idx images", true),
        idx("idx labels", false),
        file("texts", 2_000, texts, "some.txt", Source::Text),
        file("tables", 3_000, tables, "some.csv", Source::Csv),
        file("files of records", 3_000, frames(), "some.tfrecord", Source::TfRecord),
        records(),
        pictures("png files", ImageFormat::Png),
        pictures("jpeg files", ImageFormat::Jpeg),
        checkpoints("checkpoints", false),
        checkpoints("checkpoints whose sums are right", true),
    ]
}

fn words_of<const N: usize>(words: [&'static str; N]) -> &'static [&'static str] {
    Vec::leak(words.to_vec())
}

/// Returns a reader of a pair of IDX files, one of which is mutated.
fn idx(name: &'static str, is_images: bool) -> Reader {
    let images = seeds::idx(&[20, 3, 2], |index| index as u8);
    let labels = seeds::idx(&[20], |index| (index % 10) as u8);
    let (seed, other) = if is_images { (images, labels) } else { (labels, images) };
    let corpus = Corpus::new(vec![seed.clone(), seeds::gzipped(&seed)], &[]);
    let names = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"];
    let (name_of_input, name_of_other) = if is_images { (names[0], names[1]) } else { (names[1], names[0]) };
    let folder = Folder::new();
    folder.file(name_of_other, &other);
    let read = Box::new(move |input: &[u8]| {
        folder.file(name_of_input, input);
        load(&Source::Idx(folder.path()))
    });
    // A gzipped file may expand a thousandfold.
    Reader { name, short: 3_000, bound_bytes: 96 << 20, corpus, read }
}

fn frames() -> Corpus {
    let records = |image: &[u8]| seeds::records((0..12).map(|label| seeds::example(image, label % 3)));
    Corpus::new(vec![records(&[7; 4]), records(&seeds::picture(ImageFormat::Png))], &["label", "image"])
}

/// Returns a reader of mutated records in valid frames.
fn records() -> Reader {
    let seeds = [seeds::picture(ImageFormat::Png), vec![9; 16]].map(|image| seeds::example(&image, 1));
    let corpus = Corpus::new(seeds.to_vec(), &["label", "image/encoded", "image/height", "image/width"]);
    let folder = Folder::new();
    let read = Box::new(move |input: &[u8]| {
        let right = seeds::example(&[7; 4], 1);
        let rows = (0..12).map(|row| if row % 9 == 0 { input.to_vec() } else { right.clone() });
        load(&Source::TfRecord(folder.file("some.tfrecord", &seeds::records(rows))))
    });
    Reader { name: "records", short: 4_000, bound_bytes: BOUND_BYTES, corpus, read }
}

fn pictures(name: &'static str, format: ImageFormat) -> Reader {
    let corpus = Corpus::new(vec![seeds::picture(format)], &["IHDR", "IDAT", "PLTE", "tRNS", "\u{ff}"]);
    let folder = Folder::new();
    let name_of = move |number| format!("a/{number}.{}", format.extensions_str()[0]);
    fs::create_dir(folder.path().join("a")).unwrap();
    (0..10).for_each(|number| drop(folder.file(&name_of(number), &seeds::picture(format))));
    let read = Box::new(move |input: &[u8]| {
        let bytes = if format == ImageFormat::Png { seeds::checksummed_png(input) } else { input.to_vec() };
        folder.file(&name_of(0), &bytes);
        load(&Source::Images(folder.path()))
    });
    // Twice the initial memory of a decoder: for the decoded image, and for its grey version.
    Reader { name, short: 1_500, bound_bytes: 2 * BOUND_BYTES, corpus, read }
}

type State = serde_json::Value;

fn checkpoint() -> Checkpoint<State> {
    let tensor = |name: &str, shape: &[usize]| {
        let count: usize = shape.iter().product();
        Tensor {
            name: name.into(),
            shape: shape.into(),
            values: (0..count).map(|index| index as f32).collect(),
        }
    };
    Checkpoint {
        step: 7,
        state: serde_json::json!({"epoch": 3, "name": "grün \"\n"}),
        parameters: vec![tensor("weight", &[3, 4]), tensor("bias", &[4]), tensor("one", &[])],
        optimizer: vec![tensor("velocity", &[12])],
    }
}

const FILES: [&str; 3] = ["parameters.safetensors", "optimizer.safetensors", "state.json"];

/// Concatenates the files of a checkpoint, each after its length.
fn packed(files: &[Vec<u8>; 3]) -> Vec<u8> {
    files.iter().flat_map(|file| [&(file.len() as u32).to_be_bytes(), &file[..]].concat()).collect()
}

fn unpacked(mut input: &[u8]) -> [Vec<u8>; 3] {
    std::array::from_fn(|_| {
        let (length, rest) = input.split_at(input.len().min(4));
        let length = length.iter().fold(0, |length, &byte| length << 8 | usize::from(byte)).min(rest.len());
        let (file, rest) = rest.split_at(length);
        input = rest;
        file.to_vec()
    })
}

/// Returns a reader of mutated checkpoints. If `resummed`, their checksums match.
fn checkpoints(name: &'static str, resummed: bool) -> Reader {
    let folder = Folder::new();
    let path = Store::open(&folder.path(), 1).unwrap().save(checkpoint()).unwrap();
    let files = FILES.map(|name| fs::read(path.join(name)).unwrap());
    let mut seed = files.clone();
    if resummed {
        seed[2] = content(&files[2]).to_vec();
    }
    let corpus = Corpus::new(
        vec![packed(&seed)],
        &[
            "\"F32\"",
            "\"BF16\"",
            "\"shape\"",
            "\"data_offsets\"",
            "__metadata__",
            "[",
            "]",
            "{",
            "}",
            "null",
            ",",
        ],
    );
    let again = Folder::new();
    let read = Box::new(move |input: &[u8]| {
        let mut files = unpacked(input);
        if resummed {
            resum(&mut files);
        }
        FILES.iter().zip(&files).for_each(|(name, file)| fs::write(path.join(name), file).unwrap());
        let loaded = checkpoint::load::<State>(&path).map_err(|error| error.to_string())?;
        if resummed {
            go_round(&again.path(), &loaded);
        } else {
            assert_eq!(loaded, checkpoint());
        }
        let _ = &folder;
        Ok(())
    });
    Reader { name, short: 3_000, bound_bytes: BOUND_BYTES, corpus, read }
}

/// Returns the content of `state.json` without its frame.
fn content(state: &[u8]) -> &[u8] {
    let start = b"{\n\"xxh3_of_content\": \"0123456789abcdef\",\n\"content\": ".len();
    &state[start..state.len() - b"\n}\n".len()]
}

/// Corrects the checksums in a checkpoint.
fn resum([parameters, optimizer, state]: &mut [Vec<u8>; 3]) {
    if let Ok(mut content) = serde_json::from_slice::<State>(state) {
        for (name, file) in [("parameters", &*parameters), ("optimizer", &*optimizer)] {
            if let Some(sum) = content.get_mut(name).and_then(State::as_object_mut) {
                sum.insert("bytes".into(), file.len().into());
                sum.insert("xxh3".into(), format!("{:016x}", xxh3_64(file)).into());
            }
        }
        *state = content.to_string().into();
    }
    let sum = xxh3_64(state);
    let before = format!("{{\n\"xxh3_of_content\": \"{sum:016x}\",\n\"content\": ");
    *state = [before.as_bytes(), state, b"\n}\n"].concat();
}

/// Asserts that an accepted checkpoint is complete: if its values are finite, it survives a round trip through a store.
fn go_round(directory: &Path, loaded: &Checkpoint<State>) {
    let saved = Store::open(directory, 1).unwrap().save(loaded.clone());
    let values = loaded.parameters.iter().chain(&loaded.optimizer).flat_map(|tensor| &tensor.values);
    if !values.into_iter().all(|value| value.is_finite()) {
        assert!(matches!(saved, Err(CheckpointError::NotFinite { .. })), "{saved:?}");
        return;
    }
    let path = saved.unwrap();
    let again: Checkpoint<State> = checkpoint::load(&path).unwrap();
    let bits = |tensors: &[Tensor]| {
        let bits = |tensor: &Tensor| {
            let values: Vec<_> = tensor.values.iter().map(|value| value.to_bits()).collect();
            (tensor.name.clone(), tensor.shape.clone(), values)
        };
        tensors.iter().map(bits).collect::<Vec<_>>()
    };
    assert_eq!((again.step, &again.state), (loaded.step, &loaded.state));
    assert_eq!(bits(&again.parameters), bits(&loaded.parameters));
    assert_eq!(bits(&again.optimizer), bits(&loaded.optimizer));
}
