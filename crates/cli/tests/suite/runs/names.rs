//! The names of classes and columns, which a checkpoint keeps.

use super::*;
use unisono_testing::suite::Test;
use unisono_testing::tests;

/// A run on a table, and what it measured at its end.
fn trained(directory: &Path) -> (std::path::PathBuf, Value) {
    let (file, kept) = (directory.join("table.csv"), directory.join("kept"));
    table(&file, 300);
    let source = source(&file);
    let words = [&words_for(&source, &kept)[..], &["--epochs", "20"]].concat();
    let last = objects(&words).pop().unwrap();
    assert!(last["test_accuracy"].as_f64().unwrap() > 0.9, "{last}");
    (kept, last)
}

fn columns_are_found_by_name_and_a_row_is_standardised_as_in_training() {
    let directory = tempfile::tempdir().unwrap();
    let (kept, last) = trained(directory.path());
    let checkpoint = kept.to_str().unwrap();
    let file = |name: &str, text: String| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        source(&path)
    };
    let predicted = |data: &str| objects(&["predict", "--checkpoint", checkpoint, "--data", data]);
    let rows = |rows: std::ops::Range<usize>| rows.map(row);
    let other: String = rows(0..300).map(|(near, far, kind)| format!("{kind},{far},7,{near}\n")).collect();
    let other = file("other.csv", format!("kind,far,more,near\n{other}"));
    let evaluated = objects(&["evaluate", "--checkpoint", checkpoint, "--data", &other]).pop().unwrap();
    assert_eq!((&evaluated["accuracy"], &evaluated["loss"]), (&last["test_accuracy"], &last["test_loss"]));

    // By itself, and without saying what it is.
    let all = predicted(&source(&directory.path().join("table.csv")));
    for at in [9, 19, 29] {
        let (near, far, kind) = row(at);
        let one = predicted(&file("one.csv", format!("far,near\n{far},{near}\n"))).pop().unwrap();
        let among = &all[at / 10];
        assert_eq!(one["class_name"], among["class_name"]);
        // Sums of one row are rounded otherwise than those of many.
        let apart = one["probability"].as_f64().unwrap() - among["probability"].as_f64().unwrap();
        assert!(apart.abs() < 1e-6, "{one} {among}");
        assert_eq!((&one["label"], &one["label_name"]), (&Value::Null, &Value::Null));
        assert_eq!((&one["split"], &one["index"]), (&"all".into(), &0.into()));
        assert_eq!(among["label_name"], kind);
    }
    let one = format!("csv:{}", directory.path().join("one.csv").display());
    let said = unisono(&["predict", "--checkpoint", checkpoint, "--data", &one]).expect_success().stdout;
    assert!(["ant", "bee", "cow"].iter().any(|name| said.contains(&format!("class {name}"))), "{said}");

    for command in ["evaluate", "predict"] {
        let ask =
            |data: &str, said: &[&str]| refused(&[command, "--checkpoint", checkpoint, "--data", data], said);
        let renamed = file("renamed.csv", "near,wide,kind\n1,2,ant\n".to_owned());
        ask(&renamed, &["line 1: has no column `far`", "trained on `near`, `far`", "`wide`"]);
        let unknown = file("unknown.csv", "near,far,kind\n1,2,elk\n".to_owned());
        ask(&unknown, &["column `kind`: `elk` is not a class that the model knows", "`ant`, `bee`, `cow`"]);
    }
    refused(&["evaluate", "--checkpoint", checkpoint, "--data", &one], &["has no column `kind`", "predict"]);
    refused(&["predict", "--checkpoint", checkpoint, "--data", &one, "--split", "test"], &["--split all"]);
}

fn folders_are_classes_by_their_names() {
    let directory = tempfile::tempdir().unwrap();
    let folder = |set: &str, class: &str, grey: u8| {
        let folder = directory.path().join(set).join(class);
        fs::create_dir_all(&folder).unwrap();
        for number in 0..20 {
            let image = image::GrayImage::from_pixel(6, 6, image::Luma([grey + number]));
            image.save(folder.join(format!("{number:02}.png"))).unwrap();
        }
        format!("images:{}", directory.path().join(set).display())
    };
    folder("known", "cat", 10);
    let known = folder("known", "dog", 200);
    let kept = directory.path().join("kept");
    let last = objects(&[&words_for(&known, &kept)[..], &["--epochs", "15"]].concat()).pop().unwrap();
    assert_eq!(last["test_accuracy"], 1.0, "{last}");
    let checkpoint = kept.to_str().unwrap();
    let said = unisono(&["predict", "--checkpoint", checkpoint, "--data", &known]).expect_success().stdout;
    assert!(said.contains("class cat") && said.contains("class dog") && said.contains("label dog"), "{said}");
    let image = directory.path().join("known/dog/03.png");
    let said =
        objects(&["predict", "--checkpoint", checkpoint, "--image", image.to_str().unwrap()]).pop().unwrap();
    assert_eq!(said["class_name"], "dog");

    // Alone it would be class 0 by its own order.
    let dogs = folder("dogs", "dog", 200);
    let evaluated = objects(&["evaluate", "--checkpoint", checkpoint, "--data", &dogs]).pop().unwrap();
    assert_eq!((&evaluated["accuracy"], &evaluated["targets"]), (&1.0.into(), &2.into()));
    folder("renamed", "zebra", 10);
    let renamed = folder("renamed", "dog", 200);
    let said = ["zebra`: is not a class that the model knows: expected `cat`, `dog`"];
    refused(&["evaluate", "--checkpoint", checkpoint, "--data", &renamed, "--threads", "2"], &said);
}

fn a_target_is_predicted_as_a_number_on_any_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let (table, kept) = (folder.path().join("houses.csv"), folder.path().join("kept"));
    let row = |row: u32| {
        let (size, age) = (f64::from(row * 37 % 101), f64::from(row * 53 % 89));
        format!("{size},{age},{}\n", 3000.0 * size - 900.0 * age + 50_000.0)
    };
    fs::write(&table, "size,age,price\n".to_owned() + &(0..600).map(row).collect::<String>()).unwrap();
    let data = format!("csv:{}", table.display());
    let train = ["train", "--data", &data, "--target", "price", "--hidden", "16", "--epochs", "30"];
    let run = |more: &[&str]| objects(&[&train[..], more].concat());
    let ended =
        run(&["--threads", "2", "--order", "world-invariant", "--checkpoint-dir", kept.to_str().unwrap()]);
    let [.., epoch, done] = &ended[..] else { panic!("no rows") };
    assert!(epoch["test_accuracy"].is_null() && epoch["metrics"]["r2"].as_f64() > Some(0.95), "{epoch}");
    assert!(epoch["test_loss"].as_f64() < Some(0.05), "{epoch}");
    let alone = run(&["--threads", "1", "--global-batch", "128", "--order", "world-invariant"]);
    assert_eq!(alone.last().unwrap()["parameters_hash"], done["parameters_hash"]);

    let checkpoint = ["--checkpoint", kept.to_str().unwrap()];
    let evaluated = objects(&[&["evaluate", "--metrics", "mae"][..], &checkpoint].concat()).remove(0);
    assert_eq!(
        (&evaluated["loss"], &evaluated["metrics"]["mae"]),
        (&epoch["test_loss"], &epoch["metrics"]["mae"])
    );
    let text = unisono(&[&["evaluate"][..], &checkpoint].concat()).expect_success().stdout;
    assert!(!text.contains("accuracy") && !text.contains("NaN"), "{text}");
    refused(&[&["predict", "--data", &data][..], &checkpoint].concat(), &["it predicts a number"]);
    refused(&["train", "--target", "price"], &["--target has no effect without --data csv:FILES"]);
    refused(
        &[&train[..], &["--metrics", "f1"]].concat(),
        &["the metric f1 says nothing: a regression has no classes"],
    );
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_target_is_predicted_as_a_number_on_any_number_of_ranks,
        columns_are_found_by_name_and_a_row_is_standardised_as_in_training,
        folders_are_classes_by_their_names,
    ]
}
