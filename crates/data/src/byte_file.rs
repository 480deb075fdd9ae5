//! Files with reads at any offset, from any thread. Compressed content is decompressed once into an unnamed temporary file, which disappears with the
//! process.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Read, Write};
use std::ops::Deref;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use flate2::bufread::{MultiGzDecoder, ZlibDecoder};
use rustix::fs::fstatvfs;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::error::DataError;
use crate::pipeline::part;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    /// The gzip format, with any number of members.
    Gzip,
    Zlib,
}

impl Compression {
    pub(super) fn of(start: &[u8]) -> Option<Self> {
        match *start {
            [0x1f, 0x8b, ..] => Some(Self::Gzip),
            // RFC 1950: deflate, a window of at most 32 KiB, no preset dictionary, and a checksum.
            [first, second, ..]
                if first & 0x8f == 8
                    && second & 0x20 == 0
                    && u16::from_be_bytes([first, second]).is_multiple_of(31) =>
            {
                Some(Self::Zlib)
            }
            _ => None,
        }
    }
}

/// A file, or the decompressed content of one.
#[derive(Debug)]
pub(super) struct ByteFile {
    pub(super) path: PathBuf,
    file: File,
    pub(super) length: u64,
}

impl ByteFile {
    /// Opens a file. Copies a file that has no random access, such as a pipe, to a temporary one.
    pub(super) fn open(path: PathBuf) -> Result<Self, DataError> {
        let unreadable = DataError::read(&path);
        let mut file = opened(|| File::open(&path)).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        if metadata.is_file() {
            return Ok(Self { path, file, length: metadata.len() });
        }
        spooled(&path, &mut file)
    }

    pub(super) fn is_gzipped(&self) -> Result<bool, DataError> {
        Ok(Compression::of(&self.start()?) == Some(Compression::Gzip))
    }

    /// Decompresses the file into an unnamed temporary one while `scan` reads it, so that decompression stops where `scan` fails. The content that
    /// `scan` leaves unread must be valid, and is discarded.
    pub(super) fn unpacked<T>(
        self,
        compression: Compression,
        scan: impl FnOnce(&mut Unpacking<'_>) -> Result<T, DataError>,
    ) -> Result<(Self, T), DataError> {
        let mut packed = BufReader::new(self.reader());
        let content: Box<dyn Read + '_> = match compression {
            Compression::Gzip => Box::new(MultiGzDecoder::new(&mut packed)),
            Compression::Zlib => Box::new(ZlibDecoder::new(&mut packed)),
        };
        let path = &self.path;
        let (spool, scanned) = {
            let mut unpacking = Unpacking { path, content, spool: Spool::new(path)?, failure: None };
            let scanned = scan(&mut unpacking).and_then(|scanned| {
                // Continues to the checksum at the end.
                io::copy(&mut unpacking.content, &mut io::sink()).map_err(|error| corrupt(path, &error))?;
                Ok(scanned)
            });
            // Readers between this one and `scan` report a less precise error.
            unpacking.failure.map_or(Ok(()), Err)?;
            (unpacking.spool, scanned?)
        };
        if !packed.fill_buf().map_err(DataError::read(path))?.is_empty() {
            return Err(corrupt(path, &"bytes after the end of the zlib stream"));
        }
        Ok((spool.finish()?, scanned))
    }

    /// Returns the first bytes, enough to detect a format.
    pub(super) fn start(&self) -> Result<Vec<u8>, DataError> {
        self.read(0, self.length.min(16) as usize)
    }

    /// Reads this many bytes from an offset. They must be within the file's length, which bounds the allocation.
    pub(super) fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, DataError> {
        let mut bytes = vec![0; length];
        self.read_into(offset, &mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn read_into(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DataError> {
        part("reading", || self.file.read_exact_at(bytes, offset)).map_err(DataError::read(&self.path))
    }

    /// Returns a reader from the start of the file. It does not move the shared position.
    pub(super) fn reader(&self) -> Reader<&Self> {
        Reader::new(self, 0)
    }
}

pub(super) struct Reader<F> {
    file: F,
    position: u64,
}

impl<F: Deref<Target = ByteFile>> Reader<F> {
    pub(super) fn new(file: F, position: u64) -> Self {
        Self { file, position }
    }
}

impl<F: Deref<Target = ByteFile>> Read for Reader<F> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.file.file.read_at(bytes, self.position)?;
        self.position += count as u64;
        Ok(count)
    }
}

impl<F: Deref<Target = ByteFile>> io::Seek for Reader<F> {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        let (from, by) = match to {
            io::SeekFrom::Start(position) => (position, 0),
            io::SeekFrom::Current(by) => (self.position, by),
            io::SeekFrom::End(by) => (self.file.length, by),
        };
        self.position = from.checked_add_signed(by).ok_or(ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

/// The content of a compressed file, read from its start. The bytes read so far are in a temporary file.
pub(super) struct Unpacking<'a> {
    path: &'a Path,
    content: Box<dyn Read + 'a>,
    spool: Spool,
    failure: Option<DataError>,
}

/// Keeps the error too, since readers on top may wrap it in their own error.
impl Read for Unpacking<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = match self.content.read(bytes) {
            Ok(count) => self.spool.write(&bytes[..count]).map(|()| count),
            Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
            Err(error) => Err(corrupt(self.path, &error)),
        };
        read.map_err(|error| {
            let message = io::Error::other(error.to_string());
            self.failure = Some(error);
            message
        })
    }
}

/// Opens a file. If this process has too many open files, raises their limit first: the files of a data set stay open, and may be thousands.
fn opened(open: impl Fn() -> io::Result<File>) -> io::Result<File> {
    loop {
        match open() {
            Err(error) if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) && raise_limit() => {}
            opened => return opened,
        }
    }
}

/// Doubles the limit of open files, as far as permitted. Returns whether it has grown.
fn raise_limit() -> bool {
    let mut limit = getrlimit(Resource::Nofile);
    let Some(before) = limit.current else { return false };
    let after = limit.maximum.map_or(2 * before, |most| most.min(2 * before));
    limit.current = Some(after);
    after > before && setrlimit(Resource::Nofile, limit).is_ok()
}

fn corrupt(path: &Path, error: &dyn Display) -> DataError {
    DataError::file(path, format!("cannot be unpacked: {error}; fetch it again"))
}

/// Copies the content of the file at `path` to an unnamed temporary file.
fn spooled(path: &Path, content: &mut File) -> Result<ByteFile, DataError> {
    let mut spool = Spool::new(path)?;
    let mut block = vec![0; BLOCK];
    loop {
        match content.read(&mut block) {
            Ok(0) => return spool.finish(),
            Ok(count) => spool.write(&block[..count])?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(DataError::read(path)(error)),
        }
    }
}

/// A new unnamed file in the system's temporary directory, for the content of the file at `path`.
pub(super) struct Spool {
    path: PathBuf,
    file: BufWriter<File>,
    written: u64,
}

pub(super) const BLOCK: usize = 1 << 16;
/// Bytes between two checks of the free space.
const STRIDE: u64 = 64 << 20;
/// The space to leave free on the disk; less on a small disk.
const RESERVE: u64 = 1 << 30;

impl Spool {
    pub(super) fn new(path: &Path) -> Result<Self, DataError> {
        let file = opened(tempfile::tempfile).map_err(|error| no_room(path, &error))?;
        Ok(Self { path: path.into(), file: BufWriter::with_capacity(BLOCK, file), written: 0 })
    }

    /// Returns an error before the disk is full, which would make other programs fail too.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        let unwritten = |error: io::Error| no_room(&self.path, &error);
        let before = self.written / STRIDE;
        self.written += bytes.len() as u64;
        self.file.write_all(bytes).map_err(unwritten)?;
        if self.written / STRIDE > before {
            let [free, size] = room(self.file.get_ref()).map_err(unwritten)?;
            if free < RESERVE.min(size / 20) {
                let left = format!("only {} would be left free there", amount(free));
                return Err(no_room(&self.path, &left));
            }
        }
        Ok(())
    }

    /// Returns the whole file for reading. Its errors name the original file.
    pub(super) fn finish(self) -> Result<ByteFile, DataError> {
        let Self { path, file, written } = self;
        let file = file.into_inner().map_err(|error| no_room(&path, error.error()))?;
        Ok(ByteFile { path, file, length: written })
    }
}

fn no_room(path: &Path, why: &dyn Display) -> DataError {
    let problem = format!(
        "does not fit, unpacked, into a temporary file in `{}`: {why}; set TMPDIR to a directory with more room",
        std::env::temp_dir().display()
    );
    DataError::file(path, problem)
}

/// Returns the bytes of the file system of an open file or directory: those available to this user, and the total.
pub(crate) fn room(file: impl AsFd) -> io::Result<[u64; 2]> {
    let found = fstatvfs(file)?;
    Ok([found.f_bavail, found.f_blocks].map(|blocks| blocks.saturating_mul(found.f_frsize)))
}

pub(crate) fn amount(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests;
