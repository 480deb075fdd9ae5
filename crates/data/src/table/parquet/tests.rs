//! Tests of valid and invalid Parquet files.

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int32Type, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use proptest::prelude::*;

use super::super::super::testing::TestDirectory;
use super::super::read;
use super::super::tests::{kind, third, thirds};
use super::*;
use crate::batch::Pass;
use crate::dataset::Schema;
use crate::{Dataset, Options, Source};

fn read_parquet(path: &Path, options: &Options) -> Result<Dataset, DataError> {
    read(&Source::Parquet(path.into()), options, None)
}

fn read_parquet_as(path: &Path, known: &Schema, classes: usize) -> Result<Dataset, DataError> {
    read(&Source::Parquet(path.into()), &Options::default(), Some((known, classes)))
}

const COLUMNS: &str = "message table { required double a; required int32 b (INTEGER(8, false)); required binary kind (STRING); }";

/// Returns groups of rows between these numbers: a third of the row number, the number, and one of three classes.
fn file(compression: Compression, ends: &[i32]) -> Vec<u8> {
    let schema = Arc::new(parse_message_type(COLUMNS).unwrap());
    let properties = Arc::new(WriterProperties::builder().set_compression(compression).build());
    let mut writer = SerializedFileWriter::new(vec![], schema, properties).unwrap();
    for ends in ends.windows(2) {
        let rows = ends[0]..ends[1];
        let mut group = writer.next_row_group().unwrap();
        let thirds: Vec<_> = rows.clone().map(third).collect();
        let numbers: Vec<_> = rows.clone().collect();
        let kinds: Vec<_> = rows.clone().map(|row| ByteArray::from(kind(row))).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<DoubleType>().write_batch(&thirds, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int32Type>().write_batch(&numbers, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&kinds, None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.into_inner().unwrap()
}

/// Returns a file of one column, some of whose values may be missing, and a label.
fn one_column(declared: &str, numbers: &[Option<i64>]) -> Vec<u8> {
    let schema = format!("message table {{ {declared} a; required int64 label; }}");
    let mut writer =
        SerializedFileWriter::new(vec![], Arc::new(parse_message_type(&schema).unwrap()), Arc::default())
            .unwrap();
    let mut group = writer.next_row_group().unwrap();
    let levels: Vec<_> = numbers.iter().map(|number| i16::from(number.is_some())).collect();
    let there: Vec<_> = numbers.iter().flatten().copied().collect();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int64Type>().write_batch(&there, Some(&levels), None).unwrap();
    column.close().unwrap();
    let labels: Vec<_> = (0..numbers.len() as i64).map(|row| row % 2).collect();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int64Type>().write_batch(&labels, None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.into_inner().unwrap()
}

#[test]
fn a_table_is_the_same_as_in_csv() {
    let directory = TestDirectory::new();
    let csv = thirds(&directory);
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(Default::default()),
        Compression::LZ4_RAW,
    ];
    for codec in codecs {
        let one = directory.file("one.parquet", file(codec, &[0, 20, 50]));
        assert_eq!(read_parquet(&one, &Options::default()).unwrap(), csv);
        directory.file("part-0.parquet", file(codec, &[0, 30]));
        directory.file("part-1.parquet", file(codec, &[30, 50]));
        let parts = directory.path().join("part-*.parquet");
        assert_eq!(read_parquet_as(&parts, &csv.schema, 3).unwrap(), csv);
        let stored = read_parquet(&parts, &Options { in_memory_bytes: 100, ..Options::default() }).unwrap();
        assert!(format!("{:?}", stored.train).contains("ByteFile"));
        assert_eq!(stored.fingerprint().unwrap(), csv.fingerprint().unwrap());
        let batch = |data: &Dataset| data.train.batch(&[3, 44, 7], Pass::Evaluation).unwrap();
        assert_eq!(batch(&stored), batch(&csv));
    }
}

#[test]
fn errors_name_file_and_column() {
    let directory = TestDirectory::new();
    let refusal = |bytes: &[u8]| {
        read_parquet(&directory.file("some.parquet", bytes), &Options::default()).unwrap_err().to_string()
    };
    let whole = file(Compression::SNAPPY, &[0, 20]);
    let numbers: Vec<_> = (0..20).map(Some).collect();
    let mut gap = numbers.clone();
    gap[7] = None;
    let cases = [
        (b"PAR1".to_vec(), "some.parquet`: is not a Parquet file, or damaged"),
        (whole[..whole.len() - 1].to_vec(), "is not a Parquet file, or damaged"),
        (one_column("optional int64", &gap), "column `a`: row 7 has no value: expected one in every row"),
        (one_column("optional int64", &numbers[..9]), "too short: 9 rows, expected at least 10"),
    ];
    for (bytes, expected) in cases {
        let message = refusal(&bytes);
        assert!(message.contains(expected), "{message}, not {expected}");
    }
    let times = one_column("optional int64", &numbers);
    assert!(read_parquet(&directory.file("some.parquet", times), &Options::default()).is_ok());
    directory.file("a.parquet", &whole);
    directory.file("b.parquet", one_column("optional int64", &numbers));
    let message =
        read_parquet(&directory.path().join("{a,b}.parquet"), &Options::default()).unwrap_err().to_string();
    assert!(
        message.contains("b.parquet`: has the columns `a`, `label`: expected `a`, `b`, `kind`, as in `"),
        "{message}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn damaged_files_never_panic(damages in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let directory = TestDirectory::new();
        let mut bytes = file(Compression::SNAPPY, &[0, 20, 30]);
        damages.iter().for_each(|(at, byte)| { let at = at.index(bytes.len()); bytes[at] = *byte; });
        if let Ok(data) = read_parquet(&directory.file("some.parquet", bytes), &Options::default()) {
            data.train.batch(&[0, 1], Pass::Evaluation).unwrap();
        }
    }
}
