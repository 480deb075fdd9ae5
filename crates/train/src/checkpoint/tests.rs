//! Saved checkpoints load bit for bit, damaged ones are skipped, and errors are reported.

use std::fs;

use super::load::{OPTIMIZER, PARAMETERS, STATE};
use super::*;

const FILES: [&str; 3] = [PARAMETERS, OPTIMIZER, STATE];

/// The state of a checkpoint, with numbers that are easily rounded.
type State = (String, Vec<f64>, u64);

fn tensor(name: &str, shape: &[usize], values: &[f32]) -> Tensor {
    Tensor { name: name.into(), shape: shape.into(), values: values.into() }
}

fn checkpoint(step: u64) -> Checkpoint<State> {
    let special = [f32::MAX, f32::EPSILON, -0.0, 1e-40, f32::MIN_POSITIVE, f32::MIN];
    let ramp: Vec<f32> = (0..20_000).map(|index| (index as f32 + step as f32).sin()).collect();
    Checkpoint {
        step,
        state: ("grün \"\n\\".into(), vec![0.1 + 0.2, 1e-310, -0.0, f64::MAX, 2.0 / 3.0], u64::MAX),
        parameters: vec![
            tensor("z", &[2, 3], &special),
            tensor("a.weight", &[100, 200], &ramp),
            tensor("scalar", &[], &[f32::from_bits(0x8000_0001)]),
        ],
        optimizer: vec![tensor("velocity.none", &[0, 3], &[]), tensor("velocity.one", &[1], &[1.5])],
    }
}

/// Returns names, shapes and bits for a comparison, because -0.0 equals 0.0.
fn bits(tensors: &[Tensor]) -> Vec<(&str, &[usize], Vec<u32>)> {
    let bits = |tensor: &Tensor| tensor.values.iter().map(|value| value.to_bits()).collect();
    tensors.iter().map(|tensor| (&tensor.name[..], &tensor.shape[..], bits(tensor))).collect()
}

fn assert_same(found: &Checkpoint<State>, saved: &Checkpoint<State>) {
    assert_eq!((found.step, &found.state), (saved.step, &saved.state));
    assert_eq!(bits(&found.parameters), bits(&saved.parameters));
    assert_eq!(bits(&found.optimizer), bits(&saved.optimizer));
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Saves checkpoints of these steps to a directory. Returns the directory, and the path of the last checkpoint.
fn saved(steps: &[u64]) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open(directory.path(), steps.len()).unwrap();
    let paths: Vec<_> = steps.iter().map(|&step| store.save(checkpoint(step)).unwrap()).collect();
    (directory, paths.last().unwrap().clone())
}

/// Asserts that the older of two checkpoints is loaded. Returns the reason why the newer one was skipped.
fn assert_passed_over(directory: &Path, newer: &Path, file: &str) -> String {
    let loaded = load_newest::<State>(directory).unwrap().unwrap();
    assert_same(&loaded.checkpoint, &checkpoint(1));
    let [PassedOver { path, why }] = &loaded.passed_over[..] else { panic!("{:?}", loaded.passed_over) };
    assert_eq!(path.file_name(), newer.file_name());
    assert!(why.contains(file), "{why}");
    why.clone()
}

#[test]
fn checkpoint_loads_bit_for_bit() {
    let (directory, path) = saved(&[3]);
    let loaded = load_newest::<State>(directory.path()).unwrap().unwrap();
    assert_same(&loaded.checkpoint, &checkpoint(3));
    assert_eq!(loaded.passed_over, []);
    assert_eq!(names(directory.path()), [".lock", "step-0000000003"]);
    assert_same(&load(&path).unwrap(), &checkpoint(3));
    assert_same(&load_newest(&path).unwrap().unwrap().checkpoint, &checkpoint(3));
    assert_eq!(load_newest::<State>(&directory.path().join("nothing")).unwrap(), None);
}

#[test]
fn files_are_valid_safetensors() {
    let (_directory, path) = saved(&[3]);
    let bytes = fs::read(path.join(PARAMETERS)).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let weight = tensors.tensor("a.weight").unwrap();
    assert_eq!(weight.shape(), [100, 200]);
    assert_eq!(weight.data()[4..8], (4_f32).sin().to_le_bytes());
    let state: serde_json::Value = serde_json::from_slice(&fs::read(path.join(STATE)).unwrap()).unwrap();
    assert_eq!(state["content"]["step"], 3);
    assert_eq!(state["content"]["parameters"]["bytes"], bytes.len());
}

#[test]
fn checkpoint_with_a_file_of_the_wrong_length_is_skipped() {
    let (directory, newer) = saved(&[1, 2]);
    for name in FILES {
        let file = newer.join(name);
        let whole = fs::read(&file).unwrap();
        for length in [0, 1, 7, 8, 9, 40, whole.len() / 2, whole.len() - 1] {
            fs::write(&file, &whole[..length]).unwrap();
            assert_passed_over(directory.path(), &newer, name);
        }
        fs::write(&file, [&whole[..], b" "].concat()).unwrap();
        assert_passed_over(directory.path(), &newer, name);
        fs::write(&file, &whole).unwrap();
    }
    assert_same(&load_newest(directory.path()).unwrap().unwrap().checkpoint, &checkpoint(2));
}

#[test]
fn checkpoint_with_a_flipped_bit_is_skipped() {
    let (directory, newer) = saved(&[1, 2]);
    let mut seed = 1_u64;
    for name in FILES {
        let file = newer.join(name);
        let whole = fs::read(&file).unwrap();
        // One bit of each of the first 300 bytes, which hold the structure, and randomly chosen bits of the whole file.
        let drawn = (0..150).map(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 20) as usize % (8 * whole.len())
        });
        for bit in (0..300).map(|byte| 8 * byte + byte % 8).filter(|bit| bit / 8 < whole.len()).chain(drawn) {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&file, &bytes).unwrap();
            assert_passed_over(directory.path(), &newer, name);
        }
        fs::write(&file, &whole).unwrap();
    }
}

#[test]
fn newest_checkpoint_is_found_while_a_run_deletes_the_listed_one() {
    let directory = tempfile::tempdir().unwrap();
    let store = std::cell::RefCell::new(Store::open(directory.path(), 1).unwrap());
    store.borrow_mut().save(checkpoint(1)).unwrap();
    let loaded = load::newest(directory.path(), |path| {
        if path.ends_with("step-0000000001") {
            store.borrow_mut().save(checkpoint(2)).unwrap();
        }
        load::<State>(path)
    });
    assert_same(&loaded.unwrap().unwrap().checkpoint, &checkpoint(2));
    assert_eq!(newest_state::<State>(directory.path()).unwrap(), Some(checkpoint(2).state));
}

#[test]
fn checkpoint_with_a_missing_file_is_skipped_and_no_intact_one_is_an_error() {
    let (directory, newer) = saved(&[1, 2]);
    for name in FILES {
        let file = newer.join(name);
        let whole = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        let why = assert_passed_over(directory.path(), &newer, name);
        assert!(why.contains("cannot read"), "{why}");
        fs::create_dir(&file).unwrap();
        let why = assert_passed_over(directory.path(), &newer, name);
        assert!(why.contains("it is not a file"), "{why}");
        fs::remove_dir(&file).unwrap();
        fs::write(&file, whole).unwrap();
    }
    for step in [1, 2] {
        fs::write(directory.path().join(load::name(step)).join(OPTIMIZER), "nonsense").unwrap();
    }
    let error = load_newest::<State>(directory.path()).unwrap_err().to_string();
    assert_eq!(error.lines().count(), 1, "{error}");
    let newest = error.find("step-0000000002").unwrap();
    assert!(error[newest..].contains("step-0000000001") && error.contains("it has 8 bytes, not"), "{error}");
}

/// Headers that are invalid, with a matching checksum.
#[test]
fn hostile_header_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(PARAMETERS);
    let refused = |header: &str, size: u64, data: usize| {
        let bytes = [&size.to_le_bytes(), header.as_bytes(), &vec![0; data]].concat();
        fs::write(&file, &bytes).unwrap();
        let hash = xxhash_rust::xxh3::xxh3_64(&bytes);
        let sum = format!("{{\"bytes\": {}, \"xxh3\": \"{hash:016x}\"}}", bytes.len());
        files::read_tensors(&file, &serde_json::from_str(&sum).unwrap()).unwrap_err().to_string()
    };
    let one = |dtype: &str, shape: &str, end: u64| {
        format!("{{\"a\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[0,{end}]}}}}")
    };
    let whole = |header: &str, data| refused(header, header.len() as u64, data);
    assert!(whole(&one("F64", "[1]", 8), 8).contains("of type F64, not F32"));
    assert!(whole(&one("F32", "[1]", 8), 8).contains("header is invalid"));
    assert!(whole(&one("F32", "[2]", 8), 9).contains("tensors have 8 bytes, not 9"));
    assert!(whole(&one("F32", "[4611686018427387904]", 8), 8).contains("header is invalid"));
    let enormous = one("F32", "[1099511627776]", 1 << 42);
    assert!(whole(&enormous, 8).contains("bytes, not 8"));
    assert!(whole(&one("F32", "[-1]", 8), 8).contains("header is invalid"));
    assert!(whole(&"[".repeat(10_000), 0).contains("header is invalid"));
    assert!(refused("{}", u64::MAX, 8).contains("claims a size of 18446744073709551615 bytes"));
    assert!(refused("{}", 1 << 40, 8).contains("claims"));
}

#[test]
fn newest_checkpoints_are_kept_and_partial_ones_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let left_over = directory.path().join(".step-0000000009-1.partial");
    fs::create_dir_all(&left_over).unwrap();
    fs::write(left_over.join(PARAMETERS), "half").unwrap();
    fs::create_dir(directory.path().join("step-notes")).unwrap();
    assert_eq!(load_newest::<State>(directory.path()).unwrap(), None);

    let mut store = Store::open(directory.path(), 2).unwrap();
    assert!(!left_over.exists());
    for step in [5, 20, 100] {
        store.save_in_background(checkpoint(step)).unwrap();
    }
    store.wait().unwrap();
    assert_eq!(names(directory.path()), [".lock", "step-0000000020", "step-0000000100", "step-notes"]);
}

#[test]
fn checkpoint_with_a_value_that_is_not_finite_is_refused() {
    for (value, is_of_optimizer) in [(f32::NAN, false), (f32::INFINITY, true), (f32::NEG_INFINITY, false)] {
        let (directory, _) = saved(&[1]);
        let mut spoiled = checkpoint(2);
        let (tensors, name) = match is_of_optimizer {
            true => (&mut spoiled.optimizer, "velocity.one"),
            false => (&mut spoiled.parameters, "a.weight"),
        };
        *tensors[1].values.last_mut().unwrap() = value;
        let mut store = Store::open(directory.path(), 1).unwrap();
        let error = store.save(spoiled).unwrap_err().to_string();
        assert!(error.starts_with(&format!("`{name}` holds {value} after step 2")), "{error}");
        assert_eq!(names(directory.path()), [".lock", "step-0000000001"]);
    }
}

#[test]
fn checkpoint_that_a_killed_process_was_replacing_is_restored() {
    let (directory, path) = saved(&[1, 2]);
    let replaced = directory.path().join(".step-0000000002.replaced");
    fs::rename(&path, &replaced).unwrap();
    fs::create_dir(directory.path().join(".step-0000000002-1.partial")).unwrap();
    // A run looks for its checkpoint before it opens the store.
    assert_same(&load_newest(directory.path()).unwrap().unwrap().checkpoint, &checkpoint(2));
    drop(Store::open(directory.path(), 2).unwrap());
    assert_eq!(names(directory.path()), [".lock", "step-0000000001", "step-0000000002"]);
    assert_same(&load(&path).unwrap(), &checkpoint(2));

    // The process was killed after the new checkpoint had the name.
    fs::create_dir(&replaced).unwrap();
    assert_same(&load_newest(directory.path()).unwrap().unwrap().checkpoint, &checkpoint(2));
    drop(Store::open(directory.path(), 2).unwrap());
    assert_eq!(names(directory.path()), [".lock", "step-0000000001", "step-0000000002"]);
}

#[test]
fn saving_a_step_again_replaces_it_and_keeps_later_ones() {
    let (directory, _) = saved(&[1, 2, 3]);
    // The run continued from step 1.
    let mut store = Store::open(directory.path(), 1).unwrap();
    let again = Checkpoint { state: ("again".into(), vec![], 0), ..checkpoint(2) };
    let path = store.save(again.clone()).unwrap();
    assert_eq!(names(directory.path()), [".lock", "step-0000000002", "step-0000000003"]);
    assert_same(&load(&path).unwrap(), &again);
}

#[test]
fn damaged_checkpoint_is_not_counted_among_those_to_keep() {
    let (directory, damaged) = saved(&[400, 450, 500]);
    fs::remove_file(damaged.join(OPTIMIZER)).unwrap();
    let mut store = Store::open(directory.path(), 2).unwrap();
    // The run resumed from step 450.
    store.forget_after(450);
    store.save(checkpoint(550)).unwrap();
    assert_eq!(names(directory.path()), [".lock", "step-0000000450", "step-0000000500", "step-0000000550"]);
    store.save(checkpoint(600)).unwrap();
    assert_eq!(names(directory.path()), [".lock", "step-0000000550", "step-0000000600"]);
}

#[test]
fn checkpoint_is_saved_although_an_older_one_cannot_be_deleted() {
    let directory = tempfile::tempdir().unwrap();
    // A file is not deleted as a directory, not even by root.
    let file = |name: &str| fs::write(directory.path().join(name), "").unwrap();
    file(".step-0000000009-1.partial");
    let mut store = Store::open(directory.path(), 1).unwrap();
    file("step-0000000001");
    [2, 3].into_iter().for_each(|step| drop(store.save(checkpoint(step)).unwrap()));
    let left = format!(".step-0000000001-{}.partial", std::process::id());
    assert_eq!(names(directory.path()), [".lock", &left, ".step-0000000009-1.partial", "step-0000000003"]);
}

#[test]
fn error_of_a_background_save_is_returned_by_the_next_call() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run");
    let lose = || {
        let mut store = Store::open(&path, 1).unwrap();
        fs::remove_dir_all(&path).unwrap();
        store.save_in_background(checkpoint(1)).unwrap();
        store
    };
    let errors = [
        lose().wait().unwrap_err(),
        {
            let mut store = lose();
            let began = std::time::Instant::now();
            loop {
                match store.check() {
                    Err(error) => break error,
                    Ok(()) => {
                        assert!(began.elapsed() < Duration::from_secs(20), "the error must be known by now");
                    }
                }
            }
        },
        lose().save(checkpoint(2)).unwrap_err(),
        lose().save_in_background(checkpoint(2)).unwrap_err(),
    ];
    for error in errors {
        let error = error.to_string();
        assert!(error.contains(".step-0000000001-") && error.contains("older checkpoints"), "{error}");
    }
}

#[test]
fn second_store_for_a_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path(), 1).unwrap();
    let error = Store::open(directory.path(), 1).unwrap_err().to_string();
    assert!(error.contains("another process is saving checkpoints to"), "{error}");
    drop(store);
    Store::open(directory.path(), 1).unwrap();
}

#[test]
fn path_of_a_file_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for path in [file.path().to_owned(), file.path().join("below"), "/proc/1/checkpoints".into()] {
        let error = Store::open(&path, 1).unwrap_err().to_string();
        assert!(error.contains("cannot keep checkpoints in") && error.contains("may write to"), "{error}");
    }
    let unlockable = tempfile::tempdir().unwrap();
    fs::create_dir(unlockable.path().join(".lock")).unwrap();
    let error = Store::open(unlockable.path(), 1).unwrap_err().to_string();
    let expected = format!("cannot keep checkpoints in `{}`: ", unlockable.path().display());
    assert!(error.starts_with(&expected), "{error}");
    let (directory, path) = saved(&[1]);
    let other = path.with_file_name("step-0000000020");
    for make in [|path: &Path| fs::write(path, ""), |path: &Path| std::os::unix::fs::symlink("none", path)] {
        make(&other).unwrap();
        let error = Store::open(directory.path(), 1).unwrap_err().to_string();
        assert!(error.contains("step-0000000020`: it is not a directory: move or delete it"), "{error}");
        fs::remove_file(&other).unwrap();
    }
}

#[test]
fn state_that_cannot_be_loaded_is_refused_on_saving() {
    let (directory, _) = saved(&[1]);
    let mut store = Store::open(directory.path(), 1).unwrap();
    let mut lost = checkpoint(2);
    lost.state.1.push(f64::NAN);
    let error = store.save(lost).unwrap_err().to_string();
    assert!(error.starts_with("the state of step 2 cannot be stored as JSON"), "{error}");
    let mut large = checkpoint(3);
    large.state.0 = " ".repeat(100 << 20);
    let error = store.save(large).unwrap_err().to_string();
    assert!(error.starts_with("the state of step 3 has ") && error.contains("at most 104857600"), "{error}");
    assert_eq!(names(directory.path()), [".lock", "step-0000000001"]);
}

#[test]
fn error_names_an_unknown_format_version() {
    let (directory, path) = saved(&[1]);
    let content = files::read_framed(&path.join(STATE)).unwrap();
    fs::remove_file(path.join(STATE)).unwrap();
    files::write_framed(&path.join(STATE), &content.replace("\"format\": 1", "\"format\": 7")).unwrap();
    let error = load_newest::<State>(directory.path()).unwrap_err().to_string();
    assert!(error.contains("its format is 7, but this program reads only 1"), "{error}");
}

#[test]
#[should_panic(expected = "tensor `a` has 1 values, but its shape is [2]")]
fn tensor_that_does_not_match_its_shape_panics() {
    let directory = tempfile::tempdir().unwrap();
    let wrong = Checkpoint { parameters: vec![tensor("a", &[2], &[1.0])], ..checkpoint(1) };
    let _ = Store::open(directory.path(), 1).unwrap().save(wrong);
}

#[test]
fn checkpoint_is_due_by_steps_or_by_time() {
    let second = Duration::from_secs(1);
    let both = When { every_steps: Some(10), every: Some(second) };
    assert_eq!(
        [0, 9, 10, 11, 20].map(|step| both.due(step, Duration::ZERO)),
        [false, false, true, false, true]
    );
    assert!(both.due(3, second));
    assert!(!When::default().due(10, Duration::MAX));
}
