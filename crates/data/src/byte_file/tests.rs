//! Tests of plain and compressed files.

use std::cell::Cell;
use std::io::Seek;

use proptest::prelude::*;

use super::super::testing::{TestDirectory, gzip, zlib};
use super::*;

/// Returns varied bytes, more than a block.
fn content() -> Vec<u8> {
    (0..200_000_u32).map(|index| (index.wrapping_mul(index) >> 7) as u8).collect()
}

fn unpack(packed: &[u8]) -> Result<Vec<u8>, String> {
    let directory = TestDirectory::new();
    let file = ByteFile::open(directory.file("packed", packed)).unwrap();
    let compression = Compression::of(&file.start().unwrap()).ok_or("is not compressed")?;
    let whole = file.unpacked(compression, |content| Ok(io::copy(content, &mut io::sink()).unwrap_or(0)));
    let (file, passed) = whole.map_err(|error| error.to_string())?;
    assert_eq!(file.length, passed);
    Ok(file.read(0, file.length as usize).unwrap())
}

#[test]
fn compressed_files_are_decompressed() {
    let content = content();
    let (first, second) = content.split_at(70_000);
    assert_eq!(unpack(&gzip(&content)).unwrap(), content);
    assert_eq!(unpack(&[gzip(first), gzip(second), gzip(&[])].concat()).unwrap(), content);
    for level in [0, 1, 6, 9] {
        assert_eq!(unpack(&zlib(&content, level)).unwrap(), content);
    }
    assert!(unpack(&gzip(&[])).unwrap().is_empty() && unpack(&zlib(&[], 6)).unwrap().is_empty());
}

#[test]
fn truncated_and_damaged_files_are_refused() {
    let content = content();
    for packed in [gzip(&content), zlib(&content, 1)] {
        let length = packed.len();
        for end in [3, 9, 11, length / 2, length - 5, length - 1] {
            let message = unpack(&packed[..end]).unwrap_err();
            assert!(message.contains("packed`: cannot be unpacked: "), "{end} of {length}: {message}");
        }
        // The checksum is at the end of a zlib stream, and before the length in gzip's.
        let mut damaged = packed.clone();
        damaged[length - if packed[0] == 0x1f { 8 } else { 4 }] ^= 1;
        let message = unpack(&damaged).unwrap_err();
        assert!(message.contains("; fetch it again"), "{message}");
        assert!(unpack(&[packed, vec![7; 3]].concat()).is_err(), "bytes after the end");
    }
}

#[test]
fn decompression_stops_where_the_reader_fails() {
    let directory = TestDirectory::new();
    let open = || ByteFile::open(directory.file("bomb", gzip(&vec![0; 64 << 20]))).unwrap();
    let mut written = 0;
    let refused = open().unpacked(Compression::Gzip, |content| {
        io::copy(&mut content.take(12), &mut io::sink()).unwrap();
        written = content.spool.written;
        Err::<(), _>(DataError::other("no"))
    });
    assert_eq!((refused.unwrap_err().to_string().as_str(), written), ("no", 12));
    // Bytes that the reader discards are not kept.
    let (file, _) = open()
        .unpacked(Compression::Gzip, |content| Ok(io::copy(&mut content.take(12), &mut io::sink()).unwrap()))
        .unwrap();
    assert_eq!(file.length, 12);
}

#[test]
fn a_file_is_read_from_any_offset() {
    let directory = TestDirectory::new();
    let file = ByteFile::open(directory.file("plain", b"0123456789")).unwrap();
    assert!(!file.is_gzipped().unwrap());
    assert_eq!((file.length, file.read(3, 4).unwrap()), (10, b"3456".to_vec()));
    let mut reader = file.reader();
    let mut rest = String::new();
    reader.seek(io::SeekFrom::End(-2)).unwrap();
    reader.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "89");
    assert!(reader.seek(io::SeekFrom::Current(-11)).is_err());
    let message = file.read(8, 3).unwrap_err().to_string();
    assert!(message.starts_with("cannot read `") && message.contains("plain"), "{message}");
    // Files that are not regular are copied, or refused.
    assert_eq!(ByteFile::open("/dev/null".into()).unwrap().length, 0);
    let message = ByteFile::open(directory.path().into()).unwrap_err().to_string();
    assert!(message.starts_with("cannot read `"), "{message}");
}

#[test]
fn too_many_open_files_raise_their_limit_as_far_as_permitted() {
    let limit = getrlimit(Resource::Nofile);
    let may_grow = limit.current.is_some_and(|current| limit.maximum.is_none_or(|maximum| current < maximum));
    let tries = Cell::new(0);
    let open = || {
        tries.set(tries.get() + 1);
        match tries.get() {
            1 => Err(io::Error::from_raw_os_error(Errno::MFILE.raw_os_error())),
            _ => File::open("/dev/null"),
        }
    };
    assert_eq!(opened(open).is_ok(), may_grow);
    assert_eq!(getrlimit(Resource::Nofile) != limit, may_grow);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn damaged_streams_are_refused_or_unchanged(at in any::<prop::sample::Index>(), mask in 1_u8.., is_zlib: bool) {
        let content = b"a content that is short, short and short".repeat(20);
        let mut packed = if is_zlib { zlib(&content, 6) } else { gzip(&content) };
        let at = at.index(packed.len());
        packed[at] ^= mask;
        if let Ok(unpacked) = unpack(&packed) {
            // The header of gzip has fields that do not affect the content.
            prop_assert_eq!(unpacked, content);
        }
    }
}
