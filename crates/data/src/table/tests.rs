//! Tests of valid and invalid tables.

use std::io::Write as _;
use std::os::fd::AsRawFd as _;

use super::super::testing::TestDirectory;
use super::*;
use crate::batch::{Inputs, Pass};
use crate::split::Split;

fn read(file: &Path) -> Result<Dataset, DataError> {
    super::read(&Source::Csv(file.into()), &Options::default(), None)
}

fn read_as(file: &Path, known: &Schema, classes: usize) -> Result<Dataset, DataError> {
    super::read(&Source::Csv(file.into()), &Options::default(), Some((known, classes)))
}

/// Returns the error of reading this file.
fn refusal(text: &str) -> String {
    let directory = TestDirectory::new();
    read(&directory.file("table.csv", text)).unwrap_err().to_string()
}

/// Returns the first number of a row of [`thirds`].
#[cfg(any(feature = "parquet", feature = "arrow"))]
pub(super) fn third(row: i32) -> f64 {
    f64::from(row) / 3.0
}

/// Returns the class of a row of [`thirds`].
#[cfg(any(feature = "parquet", feature = "arrow"))]
pub(super) fn kind(row: i32) -> &'static str {
    ["cat", "ant", "dog"][row as usize % 3]
}

/// Returns a table of 50 rows with a third of their number, the number, and one of three classes, read from a CSV file.
#[cfg(any(feature = "parquet", feature = "arrow"))]
pub(super) fn thirds(directory: &TestDirectory) -> Dataset {
    let rows: String = (0..50).map(|row| format!("{},{row},{}\n", third(row), kind(row))).collect();
    read(&directory.file("table.csv", format!("a,b,kind\n{rows}"))).unwrap()
}

fn rows(count: u32, row: impl Fn(u32) -> String) -> String {
    (0..count).map(row).collect()
}

#[test]
fn the_header_determines_the_column_of_the_label() {
    let directory = TestDirectory::new();
    let in_front = rows(20, |row| format!("{}, {row}, 7\n", ["cat", "ant", "dog"][row as usize % 3]));
    let data = read(&directory.file("front.csv", format!("label,size,same\n{in_front}"))).unwrap();
    assert_eq!(data.kind, Kind::Table { features: 2, classes: 3 });
    assert_eq!((data.train.len(), data.test.len()), (18, 2));
    let batch = data.test.batch(&[0, 1], Pass::Evaluation).unwrap();
    // Rows 9 and 19: cat and ant.
    assert_eq!(batch.targets, [1, 0]);

    let behind = rows(20, |row| format!("{row},7,{}\n", ["cat", "ant", "dog"][row as usize % 3]));
    let mut same = read(&directory.file("behind.csv", format!("size,same,kind\n{behind}"))).unwrap();
    assert_eq!(same.schema.label.replace("label".to_owned()).as_deref(), Some("kind"));
    assert_eq!(data, same);
    // Some programs start UTF-8 files with a byte order mark.
    let marked = read(&directory.file("marked.csv", format!("\u{feff}label,size,same\n{in_front}"))).unwrap();
    assert_eq!(data, marked);
}

#[test]
fn features_are_standardised_by_the_training_rows() {
    let directory = TestDirectory::new();
    // If the held-out rows were counted, the mean would be far off.
    let rows = rows(30, |row| {
        let value = if row % 10 == 9 { 1e6 } else { f64::from(row % 2) * 4.0 + 100.0 };
        format!("{value},5,{}\n", row % 2)
    });
    let data = read(&directory.file("table.csv", format!("a,b,label\n{rows}"))).unwrap();
    let all: Vec<_> = (0..27).collect();
    let Inputs::Pixels(values) = data.train.batch(&all, Pass::Evaluation).unwrap().inputs else {
        panic!("not numbers")
    };
    let first: Vec<_> = values.iter().step_by(2).map(|&value| f64::from(value)).collect();
    let mean = first.iter().sum::<f64>() / 27.0;
    let square = first.iter().map(|value| value * value).sum::<f64>() / 27.0;
    assert!(mean.abs() < 1e-6 && (square - 1.0).abs() < 1e-6, "{mean} {square}");
    // A constant column carries no information, and is not divided by 0.
    assert!(values.iter().skip(1).step_by(2).all(|&value| value == 0.0));
}

#[test]
fn integer_labels_are_classes_in_numeric_order() {
    let classes = |labels: &[&str]| {
        let (names, places) =
            labels::number(&labels.iter().map(|&label| label.to_owned()).collect::<Vec<_>>());
        (names.join(" "), places)
    };
    assert_eq!(classes(&["2", "10", "1", "2"]), ("1 2 10".to_owned(), vec![1, 2, 0, 1]));
    assert_eq!(classes(&["0", "01", "2"]), ("0 1 2".to_owned(), vec![0, 1, 2]));
    // As words, 10 comes before 2.
    assert_eq!(classes(&["2", "10", "x"]), ("10 2 x".to_owned(), vec![1, 0, 2]));
}

#[test]
fn errors_name_line_and_column() {
    let header = "a,b,label\n1,2,x\n";
    let cases = [
        ("1,two,x\n", "line 3, column `b`: `two` is not a finite number"),
        ("\n1,NaN,x\n", "line 4, column `b`: `NaN` is not a finite number"),
        (",2,x\n", "line 3, column `a`: `` is not a finite number"),
        ("1,2,\n", "line 3, column `label`: `` is not a label"),
        ("1,2\n", "line 3: has 2 cells: expected 3"),
        ("1,2,x,y\n", "line 3: has 4 cells: expected 3"),
        ("1,2,\"x\n3,4,y\n", "line 3: has a quote that is not closed"),
        ("1,\"2,x\n3,4,y", "line 3: has a quote that is not closed"),
        ("1,2,x\n", "2 rows, expected at least 10"),
    ];
    for (row, expected) in cases {
        let message = refusal(&format!("{header}{row}"));
        assert!(message.contains("table.csv`") && message.contains(expected), "{message}, not {expected}");
        for end in ["\r\n", "\r"] {
            let message = refusal(&format!("{header}{row}").replace('\n', end));
            assert!(message.contains(expected), "{message}, not {expected}");
        }
    }
    assert!(refusal("label\n1\n").contains("line 1: has 1 columns"));
    assert!(refusal("").contains("line 1: has 0 columns"));
    assert!(refusal("a,\"b,label\n1,2,x\n").contains("line 1: has a quote that is not closed"));
    for name in ["", "__index_level_0__"] {
        let message = refusal(&format!("a,label,{name}\n1,x,0\n"));
        assert!(message.contains(&format!("line 1: has a column without a name, `{name}`: ")), "{message}");
    }
    let directory = TestDirectory::new();
    let broken = read(&directory.file("table.csv", b"a,label\n1,x\n2,\xff\n")).unwrap_err().to_string();
    assert!(broken.contains("line 3: is not UTF-8"), "{broken}");
    assert!(matches!(read(&directory.path().join("none")), Err(DataError::Read { .. })));
}

#[test]
fn errors_in_a_pipe_name_line_and_column() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"a,label\n1,x\ntwo,x\n").unwrap();
    drop(writer);
    let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
    let message = read(Path::new(&path)).unwrap_err().to_string();
    assert!(
        message.contains(", line ") && message.contains("column `a`: `two` is not a finite"),
        "{message}"
    );
}

#[test]
fn a_missing_header_is_detected() {
    let rows = |row: &str| row.repeat(12);
    for headless in ["5.1,3.5,setosa\n4.9,3.0,virginica\n", "1,0,1\n0,1,0\n"] {
        let message = refusal(&rows(headless));
        assert!(message.contains("line 1: is a row of numbers, not a header"), "{message}");
    }
    // Numeric names are accepted.
    let directory = TestDirectory::new();
    for header in ["0,1,2", "0,1,label", "2019,2020,kind"] {
        let text = format!("{header}\n{}", rows("5,3,1\n4,3,0\n"));
        assert!(read(&directory.file("table.csv", text)).is_ok(), "{header}");
    }
    let message = refusal(&format!("a,a,label\n{}", rows("5,3,1\n4,3,0\n")));
    assert!(message.contains("line 1: has two columns called `a`"), "{message}");
}

#[test]
fn labels_that_are_not_classes_are_refused() {
    let table = |label: &dyn Fn(u32) -> String| {
        format!("size,price\n{}", rows(400, |row| format!("{row},{}\n", label(row))))
    };
    let amounts = refusal(&table(&|row| format!("{}.5", row * 7)));
    assert!(amounts.contains("column `price`: the label has 400 different numbers in 400 rows"), "{amounts}");
    let rounded = refusal(&table(&|row| format!("{:.1}", f64::from(row % 150) / 7.0)));
    assert!(rounded.contains("different numbers in 400 rows, like a continuous quantity"), "{rounded}");
    let one = refusal(&table(&|_| "yes".to_owned()));
    assert!(
        one.contains("column `price`: the label is `yes` in all 400 rows: expected at least two"),
        "{one}"
    );
    let missing = refusal(&table(&|row| if row == 7 { "nan".to_owned() } else { (row % 2).to_string() }));
    assert!(missing.contains("column `price`: the label of a row is `nan`: expected a class"), "{missing}");
    let directory = TestDirectory::new();
    for label in
        [&|row| format!("{}.5", row % 5), &|row| format!("{}", row % 199)] as [&dyn Fn(u32) -> String; 2]
    {
        assert!(read(&directory.file("table.csv", table(label))).is_ok(), "{}", label(1));
    }
}

#[test]
fn a_named_target_is_a_standardised_number() {
    let directory = TestDirectory::new();
    let table = rows(40, |row| format!("{},{row},{}\n", f64::from(row) * 2.5 - 10.0, row % 3));
    let path = directory.file("table.csv", format!("price,size,label\n{table}"));
    let options = |target: &str| Options { target: Some(target.to_owned()), ..Options::default() };
    let read = |target| super::read(&Source::Csv(path.clone()), &options(target), None);
    let dataset = read("price").unwrap();
    assert_eq!(dataset.kind, Kind::Table { features: 2, classes: 1 });
    let target = dataset.schema.target.as_ref().unwrap();
    let batch = dataset.train.batch(&[0, 20], Pass::Evaluation).unwrap();
    let prices = batch.targets.iter().map(|&bits| target.original(f32::from_bits(bits)));
    // Every tenth row is held out.
    for (price, row) in prices.zip([0.0, 22.0]) {
        assert!((price - (row * 2.5 - 10.0)).abs() < 1e-4, "{price} in row {row}");
    }
    assert_eq!(read_as(&path, &dataset.schema, 1).unwrap(), dataset);
    let message = read("cost").unwrap_err().to_string();
    assert!(
        message.contains("has no column `cost` to predict: expected one of `price`, `size`, `label`"),
        "{message}"
    );

    let bad = |cell: &str| {
        let price = |row| if row == 7 { cell } else { "5" };
        let text = format!("price,size\n{}", rows(20, |row| format!("{},{row}\n", price(row))));
        directory.file("bad.csv", text)
    };
    let read = |path: &Path| {
        super::read(&Source::Csv(path.into()), &options("price"), None).unwrap_err().to_string()
    };
    for cell in ["x", ""] {
        let (read, said) =
            (read(&bad(cell)), format!("line 9, column `price`: `{cell}` is not a finite number"));
        assert!(read.contains(&said), "{read}");
    }
    let same = directory.file("same.csv", format!("price,size\n{}", rows(20, |row| format!("5,{row}\n"))));
    assert!(read(&same).contains("the target is 5 in all training rows"), "{}", read(&same));
}

/// Tests columns in another order, and an additional one; then a single row of an unknown class.
#[test]
fn another_table_is_read_by_the_column_names_of_the_first() {
    let directory = TestDirectory::new();
    let kinds = ["cat", "ant", "dog"];
    let known = rows(30, |row| format!("{row},{},{}\n", row * row, kinds[row as usize % 3]));
    let known = read(&directory.file("known.csv", format!("a,b,label\n{known}"))).unwrap();
    let other = rows(30, |row| format!("{},{},x,{row}\n", kinds[row as usize % 3], row * row));
    let other = directory.file("other.csv", format!("label,b,note,a\n{other}"));
    assert_eq!(read_as(&other, &known.schema, 3).unwrap(), known);

    let row = read_as(&directory.file("row.csv", "b,a\n49,7\n"), &known.schema, 3).unwrap();
    assert_eq!((row.train.len(), row.test.len(), row.schema.label), (1, 0, None));
    let batch = |split: &Arc<dyn Split>, row| split.batch(&[row], Pass::Evaluation).unwrap().inputs;
    assert_eq!(batch(&row.train, 0), batch(&known.train, 7));

    for (text, said) in [
        (
            "a,c,label\n1,2,cat\n",
            "line 1: has no column `b`: the model was trained on `a`, `b`, but the columns are `a`, `c`, `label`",
        ),
        (
            "a,b,label\n1,2,cow\n",
            "column `label`: `cow` is not a class that the model knows: expected `ant`, `cat`, `dog`",
        ),
        ("a,b,label\n", "0 rows, expected at least 1"),
    ] {
        let message = read_as(&directory.file("wrong.csv", text), &known.schema, 3).unwrap_err().to_string();
        assert!(message.contains(said), "{message}");
    }
}

#[test]
fn files_with_the_same_header_are_one_table() {
    let directory = TestDirectory::new();
    let part = |from: u32| rows(10, |row| format!("{},{}\n", from + row, row % 3));
    directory.file("part-0.csv", format!("a,label\n{}", part(0)));
    directory.file("part-1.csv", format!("a,label\n{}", part(10)));
    let whole = read(&directory.file("whole.csv", format!("a,label\n{}{}", part(0), part(10)))).unwrap();
    let parts = directory.path().join("part-*.csv");
    assert_eq!(read(&parts).unwrap(), whole);
    assert_eq!(read_as(&parts, &whole.schema, 3).unwrap(), whole);

    directory.file("part-2.csv", "b,label\n1,2\n");
    let message = read(&parts).unwrap_err().to_string();
    assert!(
        message.contains("part-2.csv`, line 1: has the columns `b`, `label`: expected `a`, `label`, as in `"),
        "{message}"
    );
    directory.file("part-2.csv", "a,label\n1,2\n\nx,2\n");
    let message = read(&parts).unwrap_err().to_string();
    assert!(message.contains("part-2.csv`, line 4, column `a`: `x` is not a finite number"), "{message}");
}

#[test]
fn a_table_larger_than_memory_has_the_same_batches() {
    let directory = TestDirectory::new();
    let text = rows(50, |row| format!("{}.3,{},{}\n", row * row, 7.7 / f64::from(row + 1), row % 4));
    let source = Source::Csv(directory.file("table.csv", format!("a,b,label\n{text}")));
    let memory = super::read(&source, &Options::default(), None).unwrap();
    for limit in [0, 100] {
        let options = Options { in_memory_bytes: limit, ..Options::default() };
        let known = |data: &Dataset| (data.kind.clone(), data.schema.clone(), data.fingerprint().unwrap());
        let own = super::read(&source, &options, None);
        for data in [own, super::read(&source, &options, Some((&memory.schema, 4)))] {
            let data = data.unwrap();
            assert!(format!("{:?}", data.train).contains("ByteFile"));
            assert_eq!(known(&data), known(&memory));
            for (split, expected) in [(&data.train, &memory.train), (&data.test, &memory.test)] {
                let all: Vec<_> = (0..split.len()).rev().collect();
                let batch = |split: &Arc<dyn Split>| split.batch(&all, Pass::Evaluation).unwrap();
                assert_eq!(batch(split), batch(expected));
            }
        }
    }
}
