//! Values that several tests need, and temporary files that are deleted at the end of the test.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use tempfile::TempDir;

use crate::augment::Transform;
use crate::normalization::Normalization;
use crate::pixels::Image;
use crate::random::Random;

/// A temporary directory for one test.
pub(super) struct TestDirectory(TempDir);

impl TestDirectory {
    pub(super) fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    /// Returns the directory itself.
    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file and returns its path.
    pub(super) fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        fs::write(&path, contents).unwrap();
        path
    }
}

pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    gzip_parts(&[bytes])
}

/// Compresses these parts one after another.
pub(super) fn gzip_parts(parts: &[&[u8]]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    parts.iter().for_each(|part| encoder.write_all(part).unwrap());
    encoder.finish().unwrap()
}

pub(super) fn zlib(bytes: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(level));
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Normalises a level by the statistics of MNIST.
pub(super) fn normalise(level: u8) -> f32 {
    Normalization::default().apply(&[level])[0]
}

/// Returns a grey image whose levels differ.
pub(super) fn slope() -> Image {
    Image::new([6, 9, 1], (0..54).map(|at| 20 * (at % 9) + 3 * (at / 9)).collect())
}

/// Returns variants of the slope.
pub(super) fn variants(transform: &impl Transform) -> Vec<Image> {
    (0..20).map(|sample| transform.apply(slope(), &mut Random::new([1, 2, 3, sample]))).collect()
}
