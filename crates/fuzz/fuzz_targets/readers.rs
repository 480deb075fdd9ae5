//! One of the readers of `crates/train/tests/fuzz`, given what covers more of its code than what came before:
//!
//! `UNISONO_FUZZ=tables cargo fuzz run --sanitizer none readers crates/fuzz/corpus/tables -- -dict=crates/fuzz/corpus/tables.dict -timeout=20`
//!
//! The files that are right are written into its corpus, and the words of the format into its dictionary, when it starts.
//! `./scripts/soak coverage` runs all of them.

#![no_main]
#![allow(dead_code, reason = "the test uses the rest of what it shares with us")]

use std::path::Path;
use std::sync::{Mutex, OnceLock};
use std::{env, fs};

use libfuzzer_sys::fuzz_target;

#[path = "../../train/tests/fuzz/files.rs"]
mod files;
#[path = "../../train/tests/fuzz/flights.rs"]
mod flights;
#[path = "../../train/tests/fuzz/guard.rs"]
mod guard;
#[path = "../../train/tests/fuzz/mutate.rs"]
mod mutate;
#[path = "../../train/tests/fuzz/reader.rs"]
mod reader;
#[path = "../../train/tests/fuzz/seeds.rs"]
mod seeds;
#[path = "../../train/tests/fuzz/texts.rs"]
mod texts;

use reader::Reader;

static READER: OnceLock<Mutex<Reader>> = OnceLock::new();

/// Returns the reader that is asked for, with what it begins with.
fn chosen() -> Mutex<Reader> {
    let name = env::var("UNISONO_FUZZ").unwrap_or_default();
    let mut readers = reader::all();
    let Some(at) = readers.iter().position(|reader| reader.name == name) else {
        let names: Vec<_> = readers.iter().map(|reader| reader.name).collect();
        panic!("UNISONO_FUZZ is {name:?}, and should be one of: {}", names.join(", "));
    };
    let reader = readers.swap_remove(at);
    begin(&reader);
    Mutex::new(reader)
}

fn begin(reader: &Reader) {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let corpus = place.join(reader.name);
    fs::create_dir_all(&corpus).unwrap();
    for (input, number) in reader.corpus.inputs.iter().zip(1..) {
        fs::write(corpus.join(format!("right-{number}")), input).unwrap();
    }
    // A dictionary that is empty is refused.
    let mut dictionary = "# the words of the format\n".to_owned();
    for word in reader.corpus.words {
        let bytes: String = word.bytes().map(|byte| format!("\\x{byte:02x}")).collect();
        dictionary += &format!("\"{bytes}\"\n");
    }
    fs::write(place.join(format!("{}.dict", reader.name)), dictionary).unwrap();
}

fuzz_target!(init: drop(READER.set(chosen())), |input: &[u8]| {
    let Reader { bound_bytes, read, .. } = &mut *READER.get().unwrap().lock().unwrap();
    // A refusal is as good as an acceptance; what is wrong panics, or takes too much memory.
    drop(guard::guarded("with the file that is named below", *bound_bytes, || read(input)));
});
