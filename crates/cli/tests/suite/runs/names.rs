//! The names of classes and columns, which a checkpoint contains.

use super::*;
use unisono_testing::suite::Test;
use unisono_testing::tests;

/// Trains on a table, and returns the checkpoints and the final measurements.
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

    // A single row, without its class, gets the same prediction.
    let all = predicted(&source(&directory.path().join("table.csv")));
    for at in [9, 19, 29] {
        let (near, far, kind) = row(at);
        let one = predicted(&file("one.csv", format!("far,near\n{far},{near}\n"))).pop().unwrap();
        let among = &all[at / 10];
        assert_eq!(one["class_name"], among["class_name"]);
        // Sums over one row are rounded differently than sums over many.
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

fn folders_are_matched_to_classes_by_name() {
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

    // Alone it would be class 0 in its own order.
    let dogs = folder("dogs", "dog", 200);
    let evaluated = objects(&["evaluate", "--checkpoint", checkpoint, "--data", &dogs]).pop().unwrap();
    assert_eq!((&evaluated["accuracy"], &evaluated["targets"]), (&1.0.into(), &2.into()));
    folder("renamed", "zebra", 10);
    let renamed = folder("renamed", "dog", 200);
    let said = ["zebra`: is not a class that the model knows: expected `cat`, `dog`"];
    refused(&["evaluate", "--checkpoint", checkpoint, "--data", &renamed, "--threads", "2"], &said);
}

/// Returns the size, the age and the price of a house.
fn house(row: u32) -> [f64; 3] {
    let (size, age) = (f64::from(row * 37 % 101), f64::from(row * 53 % 89));
    [size, age, 3000.0 * size - 900.0 * age + 50_000.0]
}

/// Writes a table of 600 houses.
fn houses(folder: &Path) -> String {
    let row = |row| house(row).map(|number| number.to_string()).join(",") + "\n";
    let table = folder.join("houses.csv");
    fs::write(&table, "size,age,price\n".to_owned() + &(0..600).map(row).collect::<String>()).unwrap();
    source(&table)
}

fn a_target_is_predicted_as_a_number_on_any_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let (data, kept) = (houses(folder.path()), folder.path().join("kept"));
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
    refused(&["train", "--target", "price"], &["--target has no effect without --data csv:FILES"]);
    refused(
        &[&train[..], &["--metrics", "f1"]].concat(),
        &["the metric f1 says nothing: a regression has no classes"],
    );
}

/// Computes the prediction of a saved MLP with one hidden layer for a house, in the units of the table, from its parameters and the training rows.
fn price(parameters: &[unisono_train::checkpoint::Tensor], house: [f64; 3]) -> f64 {
    let [size, age, price] = [0, 1, 2].map(|column| {
        let trained: Vec<f64> =
            (0..600).filter(|row| row % 10 != 9).map(|row| self::house(row)[column]).collect();
        let mean = trained.iter().sum::<f64>() / 540.0;
        (mean, (trained.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / 540.0).sqrt())
    });
    let [size, age] = [(house[0] - size.0) / size.1, (house[1] - age.0) / age.1];
    let of = |name: &str, at: usize| {
        let array = parameters.iter().find(|array| array.name == name).unwrap();
        f64::from(array.values[at])
    };
    let hidden = |unit: usize| {
        let weighted = size * of("hidden1.weight", unit) + age * of("hidden1.weight", 16 + unit);
        (weighted + of("hidden1.bias", unit)).max(0.0) * of("output.weight", unit)
    };
    ((0..16).map(hidden).sum::<f64>() + of("output.bias", 0)) * price.1 + price.0
}

fn numbers_are_predicted_in_the_units_of_their_column() {
    let folder = tempfile::tempdir().unwrap();
    let (data, kept) = (houses(folder.path()), folder.path().join("kept"));
    let checkpoint = kept.to_str().unwrap();
    let train = ["train", "--data", &data, "--target", "price", "--hidden", "16", "--epochs", "3"];
    objects(&[&train[..], &["--checkpoint-dir", checkpoint]].concat());
    let predict = ["predict", "--checkpoint", checkpoint, "--data"];
    let parameters = unisono_candle::Saved::open(&kept).unwrap().parameters;

    let rows = objects(&[&predict[..], &[&data, "--split", "all"]].concat());
    assert_eq!(rows.len(), 600);
    for (row, number) in rows.iter().zip((0..600).filter(|row| row % 10 == 9)) {
        let (found, expected) = (row["value"].as_f64().unwrap(), price(&parameters, house(number)));
        assert!((found - expected).abs() < 1.0, "{row}: expected {expected}");
        assert_eq!((&row["column"], row["split"].as_str()), (&"price".into(), Some("test")));
        assert_eq!(row["target"].as_f64(), Some(house(number)[2]), "{row}");
    }
    let shared = objects(&[&predict[..], &[&data, "--split", "all", "--threads", "2"]].concat());
    assert_eq!(rows, shared);

    // A house without a price, and columns in another order.
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        source(&path)
    };
    let asked = file("asked.csv", "age,rooms,size\n10,3,55\n");
    let one = objects(&[&predict[..], &[&asked]].concat()).remove(0);
    let expected = price(&parameters, [55.0, 10.0, f64::NAN]);
    assert!((one["value"].as_f64().unwrap() - expected).abs() < 1.0, "{one}: expected {expected}");
    assert!(one["target"].is_null() && one["split"] == "all", "{one}");
    let text =
        |format| unisono(&[&predict[..], &[&asked, "--format", format]].concat()).expect_success().stdout;
    assert_eq!(text("csv"), format!("split,index,column,value,target\nall,0,price,{},\n", one["value"]));
    assert_eq!(text("table"), format!("  all       0  price {}\n", one["value"]));

    let broken = file("broken.csv", "size,age,price\n1,2,dear\n");
    refused(&[&predict[..], &[&broken]].concat(), &["column `price`: `dear` is not a finite number"]);
    let other = file("other.csv", "size,price\n1,2\n");
    refused(&[&predict[..], &[&other]].concat(), &["has no column `age`", "trained on `size`, `age`"]);
    let prompt = ["predict", "--checkpoint", checkpoint, "--prompt", "a"];
    refused(&prompt, &["rows of 2 numbers and a target", "continues no prompt"]);
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        numbers_are_predicted_in_the_units_of_their_column,
        a_target_is_predicted_as_a_number_on_any_number_of_ranks,
        columns_are_found_by_name_and_a_row_is_standardised_as_in_training,
        folders_are_matched_to_classes_by_name,
    ]
}
