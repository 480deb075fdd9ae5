//! Tests of valid and invalid Arrow files, in both formats.

use std::fmt::Write;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use arrow_array::builder::{Int32Builder, ListBuilder};
use arrow_array::types::{Float16Type, Int8Type, Int32Type};
use arrow_array::{
    ArrowPrimitiveType, BooleanArray, DictionaryArray, Float16Array, Float32Array, Float64Array, Int8Array,
    Int16Array, Int32Array, Int64Array, LargeStringArray, NullArray, StringArray, StringViewArray,
    UInt8Array, UInt16Array, UInt32Array, UInt64Array,
};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{DictionaryHandling, FileWriter, IpcWriteOptions, StreamWriter};

use super::super::super::testing::TestDirectory;
use super::super::tests::{kind, third, thirds};
use super::super::{batches, read};
use super::*;
use crate::batch::Pass;
use crate::{Dataset, Options, Source};

const LZ4: Option<CompressionType> = Some(CompressionType::LZ4_FRAME);
const IS_STREAM: [bool; 2] = [false, true];

fn read_arrow(path: &Path) -> Result<Dataset, DataError> {
    read(&Source::Arrow(path.into()), &Options::default(), None)
}

/// Returns the error of reading a file of these bytes.
fn refusal(bytes: impl AsRef<[u8]>) -> String {
    let directory = TestDirectory::new();
    read_arrow(&directory.file("some.arrow", bytes)).unwrap_err().to_string()
}

/// Returns a file with these batches.
fn written(is_stream: bool, compression: Option<CompressionType>, batches: &[RecordBatch]) -> Vec<u8> {
    let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
    let options = options.with_dictionary_handling(match is_stream {
        true => DictionaryHandling::Resend,
        false => DictionaryHandling::Delta,
    });
    let schema = batches[0].schema();
    if is_stream {
        let mut writer = StreamWriter::try_new_with_options(vec![], &schema, options).unwrap();
        batches.iter().for_each(|batch| writer.write(batch).unwrap());
        writer.into_inner().unwrap()
    } else {
        let mut writer = FileWriter::try_new_with_options(vec![], &schema, options).unwrap();
        batches.iter().for_each(|batch| writer.write(batch).unwrap());
        writer.into_inner().unwrap()
    }
}

fn batch<const N: usize>(columns: [(&str, ArrayRef); N]) -> RecordBatch {
    RecordBatch::try_from_iter(columns).unwrap()
}

/// Returns rows with a third of their number, the number, and one of three classes, in the form that `labels` makes.
fn rows(rows: Range<i32>, labels: impl Fn(Vec<&'static str>) -> ArrayRef) -> RecordBatch {
    batch([
        ("a", Arc::new(Float64Array::from_iter_values(rows.clone().map(third)))),
        ("b", Arc::new(Int8Array::from_iter_values(rows.clone().map(|row| row as i8)))),
        ("kind", labels(rows.map(kind).collect())),
    ])
}

fn words(labels: Vec<&'static str>) -> ArrayRef {
    Arc::new(StringArray::from(labels))
}

fn dictionary(labels: Vec<&'static str>) -> ArrayRef {
    Arc::new(labels.into_iter().collect::<DictionaryArray<Int8Type>>())
}

#[test]
fn a_table_is_the_same_as_in_csv() {
    let directory = TestDirectory::new();
    let csv = thirds(&directory);
    let labels: [fn(Vec<&'static str>) -> ArrayRef; 4] = [
        words,
        |labels| Arc::new(LargeStringArray::from(labels)),
        |labels| Arc::new(StringViewArray::from(labels)),
        dictionary,
    ];
    let kinds = IS_STREAM.into_iter().flat_map(|is_stream| [(is_stream, None), (is_stream, LZ4)]);
    for ((is_stream, compression), labels) in kinds.flat_map(|kind| labels.map(|labels| (kind, labels))) {
        let whole = rows(0..50, labels);
        let file = |name, ends: &[usize]| {
            let batches: Vec<_> =
                ends.windows(2).map(|ends| whole.slice(ends[0], ends[1] - ends[0])).collect();
            directory.file(name, written(is_stream, compression, &batches))
        };
        assert_eq!(read_arrow(&file("one.arrow", &[0, 20, 20, 50])).unwrap(), csv);
        file("part-0.arrow", &[0, 30]);
        file("part-1.arrow", &[30, 42, 50]);
        let parts = Source::Arrow(directory.path().join("part-*.arrow"));
        let same = read(&parts, &Options::default(), Some((&csv.schema, 3))).unwrap();
        assert_eq!(same, csv);
        let options = Options { in_memory_bytes: 100, ..Options::default() };
        let stored = read(&parts, &options, None).unwrap();
        assert!(format!("{:?}", stored.train).contains("ByteFile"));
        assert_eq!(stored.schema, csv.schema);
        assert_eq!(stored.fingerprint().unwrap(), csv.fingerprint().unwrap());
        let batch = |data: &Dataset| data.train.batch(&[3, 44, 7], Pass::Evaluation).unwrap();
        assert_eq!(batch(&stored), batch(&csv));
    }
}

/// Tests every type of number, as a feature and as a label.
#[test]
fn numbers_equal_those_of_csv() {
    let columns: [ArrayRef; 13] = [
        Arc::new(Int8Array::from_iter_values((0..20).map(|row| row % 3 - 1))),
        Arc::new(Int16Array::from_iter_values((0..20).map(|row| row % 3 - 300))),
        Arc::new(Int32Array::from_iter_values((0..20).map(|row| row % 3 - 70_000))),
        Arc::new(Int64Array::from_iter_values((0..20).map(|row| row % 3 - (1 << 40)))),
        Arc::new(UInt8Array::from_iter_values((0..20).map(|row| row % 3 + 200))),
        Arc::new(UInt16Array::from_iter_values((0..20).map(|row| row % 3 + 60_000))),
        Arc::new(UInt32Array::from_iter_values((0..20).map(|row| row % 3 + 3_000_000_000))),
        Arc::new(UInt64Array::from_iter_values((0..20).map(|row| u64::MAX - row % 3))),
        Arc::new(Float32Array::from_iter_values((0..20).map(|row| (row % 3) as f32 + 0.1))),
        Arc::new(Float64Array::from_iter_values((0..20).map(|row| f64::from(row % 3) - 0.1))),
        Arc::new(BooleanArray::from_iter((0..20).map(|row| Some(row % 3 == 1)))),
        Arc::new(DictionaryArray::<Int32Type>::new(
            Int32Array::from_iter_values((0..20).map(|row| row % 3)),
            Arc::new(Float32Array::from(vec![0.5, -0.25, 1e9])),
        )),
        Arc::new((0..20).map(|row| Some(kind(row))).collect::<LargeStringArray>()),
    ];
    let features = &columns[..columns.len() - 1];
    for label in &columns {
        let named = features.iter().enumerate().map(|(at, column)| (format!("c{at}"), Arc::clone(column)));
        let table = named.chain([("label".to_owned(), Arc::clone(label))]);
        let table = RecordBatch::try_from_iter(table).unwrap();
        let mut text =
            table.schema().fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(",");
        for row in 0..20 {
            let numbers =
                features.iter().map(|column| batches::unpacked(&**column, batches::numbers).unwrap()[row]);
            let numbers: Vec<_> = numbers.map(|number| number.to_string()).collect();
            let label = &batches::unpacked(&**label, batches::texts).unwrap()[row];
            write!(text, "\n{},{label}", numbers.join(",")).unwrap();
        }
        let directory = TestDirectory::new();
        let csv = read(&Source::Csv(directory.file("table.csv", text)), &Options::default(), None).unwrap();
        for is_stream in IS_STREAM {
            let bytes = written(is_stream, LZ4, &[table.slice(0, 7), table.slice(7, 13)]);
            assert_eq!(
                read_arrow(&directory.file("table.arrow", bytes)).unwrap(),
                csv,
                "{}",
                label.data_type()
            );
        }
    }
}

#[test]
fn values_are_read_as_written() {
    type Half = <Float16Type as ArrowPrimitiveType>::Native;
    let array: ArrayRef = Arc::new(UInt64Array::from(vec![0, u64::MAX]));
    assert_eq!(batches::numbers(&array), Some(vec![0.0, 18_446_744_073_709_551_615.0]));
    assert_eq!(batches::texts(&array).unwrap(), ["0", "18446744073709551615"]);
    let array: ArrayRef = Arc::new(BooleanArray::from(vec![true, false]));
    assert_eq!(batches::numbers(&array), Some(vec![1.0, 0.0]));
    assert_eq!(batches::texts(&array).unwrap(), ["true", "false"]);
    let halves = Float16Array::from_iter_values([1.5, -2.0].map(Half::from_f32));
    assert_eq!(batches::numbers(&halves), Some(vec![1.5, -2.0]));
    assert_eq!(batches::texts(&halves).unwrap(), ["1.5", "-2.0"]);
    assert_eq!(batches::texts(&*words(vec![" ant ", "dog"])).unwrap(), ["ant", "dog"]);
    assert_eq!(batches::numbers(&*words(vec!["1"])), None);
    assert_eq!(batches::numbers(&NullArray::new(3)), None);
}

/// Tests a dictionary that is replaced in a stream, and one that grows in a file.
#[test]
fn dictionaries_may_change_between_batches() {
    let labels: Vec<_> =
        (0..20).map(|row| ["b", "a"][row % 2]).chain((0..20).map(|row| ["c", "a"][row % 2])).collect();
    let table = |labels: &[&'static str]| {
        let numbers = Float32Array::from_iter_values((0..labels.len()).map(|row| row as f32));
        batch([("a", Arc::new(numbers)), ("label", dictionary(labels.to_vec()))])
    };
    let grown = |values: &[&str], keys: Vec<i8>| {
        let values = Arc::new(StringArray::from(values.to_vec()));
        let numbers = Float32Array::from_iter_values((0..keys.len()).map(|row| row as f32));
        let labels = DictionaryArray::<Int8Type>::new(keys.into(), values);
        batch([("a", Arc::new(numbers)), ("label", Arc::new(labels))])
    };
    let replaced = [table(&labels[..20]), table(&labels[20..])];
    let keys = |one| (0..20).map(|row| [one, 1][row % 2]).collect();
    let grown = [grown(&["b", "a"], keys(0)), grown(&["b", "a", "c"], keys(2))];
    let directory = TestDirectory::new();
    for (is_stream, batches) in [(true, &replaced), (true, &grown), (false, &grown)] {
        let data = read_arrow(&directory.file("some.arrow", written(is_stream, None, batches))).unwrap();
        assert_eq!(data.schema.classes, ["a", "b", "c"]);
        let targets = data.test.batch(&[0, 1, 2, 3], Pass::Evaluation).unwrap().targets;
        assert_eq!(targets, [0, 0, 0, 0]);
        let targets = data.train.batch(&[0, 1, 18, 19], Pass::Evaluation).unwrap().targets;
        assert_eq!(targets, [1, 0, 2, 0]);
    }
}

#[test]
fn errors_name_file_column_and_row() {
    let numbers = || Arc::new(Int32Array::from_iter_values((0..20).map(|row| row % 2))) as ArrayRef;
    let table = |column: ArrayRef| {
        let whole = batch([("a", column), ("label", numbers())]);
        IS_STREAM.map(|is_stream| {
            written(is_stream, None, &[whole.slice(0, 5), whole.slice(5, whole.num_rows() - 5)])
        })
    };
    let gap = |at| (0..20).map(move |row| (row != at).then_some(row));
    let mut lists = ListBuilder::new(Int32Builder::new());
    (0..20).for_each(|row| lists.append_value([Some(row)]));
    let in_values = DictionaryArray::<Int32Type>::new(
        Int32Array::from_iter_values((0..20).map(|row| i32::from(row == 8))),
        Arc::new(Int32Array::from(vec![Some(3), None])),
    );
    let cases: [(ArrayRef, &str); 7] = [
        (
            Arc::new(Int32Array::from_iter(gap(7))),
            "some.arrow`, column `a`: row 7 has no value: expected one",
        ),
        (
            Arc::new(gap(4).map(|row| row.map(|_| "x")).collect::<DictionaryArray<Int8Type>>()),
            "expected numbers",
        ),
        (Arc::new(in_values), "column `a`: row 8 has no value: expected one in every row"),
        (
            Arc::new(Float64Array::from_iter_values((0..20).map(|row| if row == 6 { 1e40 } else { 1.0 }))),
            "column `a`: row 6 has 1e40: expected a finite 32-bit number",
        ),
        (words((0..20).map(kind).collect()), "column `a`: is of the type Utf8: expected numbers"),
        (Arc::new(lists.finish()), "column `a`: is of the type List(Int32"),
        (Arc::new(NullArray::new(20)), "column `a`: is of the type Null: expected numbers"),
    ];
    for (column, expected) in cases {
        for bytes in table(column) {
            let message = refusal(bytes);
            let expected = expected.replace("1e40", &1e40.to_string());
            assert!(message.contains(&expected), "{message}, not {expected}");
        }
    }
    let blank = batch([("a", numbers()), ("label", words([&["x"; 19][..], &[" "]].concat()))]);
    let message = refusal(written(false, None, &[blank]));
    assert!(message.contains("some.arrow`, column `label`: row 19 has ``: expected a label"), "{message}");
    for text in ["a,label\n1,2\n", "ARROW1", "ARROW1 and so on, and no ARROW1", "", "\0\0\0\0"] {
        let message = refusal(text);
        assert!(message.contains("some.arrow`: is not an Arrow file, or damaged"), "{message}");
    }
    let none = batch([("a", numbers()), ("label", numbers())]).slice(0, 0);
    for is_stream in IS_STREAM {
        let message = refusal(written(is_stream, LZ4, &[rows(0..9, words)]));
        assert!(message.contains("too short: 9 rows, expected at least 10"), "{message}");
        // This build cannot compress by ZSTD, but columns without rows are not compressed.
        let message = refusal(written(is_stream, Some(CompressionType::ZSTD), std::slice::from_ref(&none)));
        let expected = "cannot be decoded from row 0 on: it is compressed by ZSTD: expected LZ4";
        assert!(message.contains(expected), "{message}");
        let mut more = written(is_stream, None, &[rows(0..20, words)]);
        more.push(0);
        let message = refusal(more);
        assert!(message.contains("is not an Arrow file, or damaged: its"), "{message}");
    }
}

#[test]
fn files_must_have_the_same_columns() {
    let directory = TestDirectory::new();
    directory.file("a.arrow", written(true, None, &[rows(0..20, words)]));
    let other = batch([("a", words(vec!["1"])), ("label", words(vec!["x"]))]);
    directory.file("b.arrow", written(false, None, &[other]));
    let message = read_arrow(&directory.path().join("{a,b}.arrow")).unwrap_err().to_string();
    let expected = "b.arrow`: has the columns `a`, `label`: expected `a`, `b`, `kind`, as in `";
    assert!(message.contains(expected), "{message}");
    // The formats, and the types of the same columns, may differ.
    directory.file("b.arrow", written(false, LZ4, &[rows(20..50, dictionary)]));
    let both = read_arrow(&directory.path().join("{a,b}.arrow")).unwrap();
    let whole = written(true, None, &[rows(0..50, words)]);
    assert_eq!(both, read_arrow(&directory.file("whole.arrow", whole)).unwrap());
}

/// Tests that unused columns may have any type.
#[test]
fn unused_columns_are_ignored() {
    let directory = TestDirectory::new();
    let table = rows(0..50, words);
    let known = read_arrow(&directory.file("known.arrow", written(true, None, std::slice::from_ref(&table))))
        .unwrap();
    let mut lists = ListBuilder::new(Int32Builder::new());
    (0..50).for_each(|row| lists.append_value((0..row % 3).map(Some)));
    let column = |at: usize| Arc::clone(table.column(at));
    let more = batch([
        ("kind", column(2)),
        ("lists", Arc::new(lists.finish())),
        ("b", column(1)),
        ("note", dictionary((0..50).map(kind).collect())),
        ("views", Arc::new(StringViewArray::from_iter_values((0..50).map(kind)))),
        ("a", column(0)),
        ("nothing", Arc::new(NullArray::new(50))),
    ]);
    for is_stream in IS_STREAM {
        let file =
            directory.file("more.arrow", written(is_stream, LZ4, &[more.slice(0, 20), more.slice(20, 30)]));
        let mut data = read(&Source::Arrow(file), &Options::default(), Some((&known.schema, 3))).unwrap();
        data.schema.label = known.schema.label.clone();
        assert_eq!(data, known);
    }
}

/// Tests that a file with a changed byte, or that is truncated, is read or refused, and allocates no memory that it only claims to need.
#[test]
fn damaged_files_never_panic() {
    let directory = TestDirectory::new();
    let is_read = |path: &Path| {
        let data = read_arrow(path);
        data.map(|data| data.train.batch(&[0, 1], Pass::Evaluation).unwrap()).is_ok()
    };
    let labels: [fn(Vec<&'static str>) -> ArrayRef; 2] =
        [dictionary, |labels| Arc::new(StringViewArray::from(labels))];
    let kinds = IS_STREAM.into_iter().flat_map(|is_stream| [(is_stream, None), (is_stream, LZ4)]);
    let kinds = kinds.zip([labels, labels].into_iter().flatten());
    for (number, ((is_stream, compression), labels)) in kinds.enumerate() {
        let whole = written(is_stream, compression, &[rows(0..12, labels), rows(12..20, labels)]);
        let path = directory.file(&format!("{is_stream}-{compression:?}"), &whole);
        let file = File::options().write(true).open(&path).unwrap();
        // The step has no common factor with the sizes of fields. Each kind of file begins at another place.
        for (at, &byte) in whole.iter().enumerate().skip(number % 3).step_by(3) {
            file.write_all_at(&[byte ^ [1, 0x80][at / 3 % 2]], at as u64).unwrap();
            is_read(&path);
            file.write_all_at(&[byte], at as u64).unwrap();
        }
        assert!(is_read(&path));
        for length in (0..whole.len()).rev().step_by(3) {
            file.set_len(length as u64).unwrap();
            // A stream may end after any message.
            let may_end = is_stream && whole[length..].starts_with(&[0xff; 4]);
            assert!(may_end || !is_read(&path), "{length} of {} bytes", whole.len());
        }
    }
}

/// The eight bytes before compressed ones are their decompressed size.
#[test]
fn impossible_decompressed_sizes_are_not_allocated() {
    let whole = written(true, LZ4, &[rows(0..100, words)]);
    let claim = 800_i64.to_le_bytes();
    let at = whole.windows(8).position(|bytes| bytes == claim).unwrap();
    for claim in [1 << 20, 1 << 46, i64::MAX, i64::MIN, -2] {
        let mut bytes = whole.clone();
        bytes[at..][..8].copy_from_slice(&claim.to_le_bytes());
        let message = refusal(bytes);
        assert!(message.contains(&format!("compressed bytes claim to be {claim}")), "{message}");
    }
}
