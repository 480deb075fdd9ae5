//! Tables that are right, and every way for one to be wrong.

use super::super::testing::TestDirectory;
use super::super::{Inputs, Pass};
use super::*;

/// What reading this file says.
fn refusal(text: &str) -> String {
    let directory = TestDirectory::new();
    read(&directory.file("table.csv", text)).unwrap_err().to_string()
}

fn rows(count: u32, row: impl Fn(u32) -> String) -> String {
    (0..count).map(row).collect()
}

#[test]
fn the_label_is_where_the_header_says() {
    let directory = TestDirectory::new();
    let in_front = rows(20, |row| format!("{}, {row}, 7\n", ["cat", "ant", "dog"][row as usize % 3]));
    let data = read(&directory.file("front.csv", format!("label,size,same\n{in_front}"))).unwrap();
    assert_eq!(data.kind, Kind::Table { features: 2, classes: 3 });
    assert_eq!((data.train.len(), data.test.len()), (18, 2));
    let batch = data.test.batch(&[0, 1], Pass::Evaluation).unwrap();
    // Rows 9 and 19: cat and ant.
    assert_eq!(batch.targets, [1, 0]);

    let behind = rows(20, |row| format!("{row},7,{}\n", ["cat", "ant", "dog"][row as usize % 3]));
    let same = read(&directory.file("behind.csv", format!("size,same,kind\n{behind}"))).unwrap();
    assert_eq!(data, same);
    // As some programs mark UTF-8.
    let marked = read(&directory.file("marked.csv", format!("\u{feff}label,size,same\n{in_front}"))).unwrap();
    assert_eq!(data, marked);
}

#[test]
fn features_are_standardised_by_what_is_trained_on() {
    let directory = TestDirectory::new();
    // Were the rows to test on counted, the mean would be far off.
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
    // A constant column says nothing, and is not divided by 0.
    assert!(values.iter().skip(1).step_by(2).all(|&value| value == 0.0));
}

#[test]
fn whole_numbers_are_classes_in_their_order() {
    let classes = |labels: &[&str]| number(&labels.iter().map(|&label| label.to_owned()).collect::<Vec<_>>());
    assert_eq!(classes(&["2", "10", "1", "2"]), (3, vec![1, 2, 0, 1]));
    assert_eq!(classes(&["0", "1", "2"]), (3, vec![0, 1, 2]));
    // As words, 10 comes before 2.
    assert_eq!(classes(&["2", "10", "x"]), (3, vec![1, 0, 2]));
}

#[test]
fn what_is_wrong_is_named_by_line_and_column() {
    let header = "a,b,label\n1,2,x\n";
    let cases = [
        ("1,two,x\n", "line 3, column `b`: `two` is no finite number"),
        ("\n1,NaN,x\n", "line 4, column `b`: `NaN` is no finite number"),
        (",2,x\n", "line 3, column `a`: `` is no finite number"),
        ("1,2,\n", "line 3, column `label`: `` is no label"),
        ("1,2\n", "line 3: has 2 cells: expected 3"),
        ("1,2,x,y\n", "line 3: has 4 cells: expected 3"),
        ("1,2,x\n", "2 rows, expected at least 10"),
    ];
    for (row, expected) in cases {
        let message = refusal(&format!("{header}{row}"));
        assert!(message.contains("table.csv`") && message.contains(expected), "{message}, not {expected}");
        let other_ends = refusal(&format!("{header}{row}").replace('\n', "\r\n"));
        assert!(other_ends.contains(expected), "{other_ends}, not {expected}");
    }
    assert!(refusal("label\n1\n").contains("line 1: has 1 columns"));
    assert!(refusal("").contains("line 1: has 0 columns"));
    let directory = TestDirectory::new();
    let broken = read(&directory.file("table.csv", b"a,label\n1,x\n2,\xff\n")).unwrap_err().to_string();
    assert!(broken.contains("line 3: is not UTF-8"), "{broken}");
    assert!(matches!(read(&directory.path().join("none")), Err(DataError::Read { .. })));
}
