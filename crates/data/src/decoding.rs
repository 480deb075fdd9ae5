//! Decodes image files.

use std::io::Cursor;

use image::{DynamicImage, ImageReader, Limits};

/// The memory limit for decoding a file. The formats do not compress further, and a header may claim any size.
fn limits(bytes: &[u8]) -> Limits {
    const LEAST: u64 = 8 << 20;
    const OF_A_BYTE: u64 = 10_000;
    let mut limits = Limits::default();
    let worth = LEAST + OF_A_BYTE * bytes.len() as u64;
    limits.max_alloc = limits.max_alloc.map(|most| most.min(worth));
    limits
}

/// Whether a file starts like a PNG or a JPEG.
pub(super) fn is_encoded(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x89PNG\r\n\x1a\n") || bytes.starts_with(b"\xff\xd8\xff")
}

/// Decodes a PNG or JPEG file; the error describes the problem.
pub(super) fn decode(bytes: &[u8]) -> Result<DynamicImage, String> {
    if !is_encoded(bytes) {
        return Err("is neither PNG nor JPEG: expected one of them".into());
    }
    let broken = |error: &dyn std::fmt::Display| format!("cannot be decoded: {error}; fetch it again");
    let mut reader =
        ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|error| broken(&error))?;
    reader.limits(limits(bytes));
    reader.decode().map_err(|error| broken(&error))
}
