//! The bytes of an image file as an image.

use std::io::Cursor;

use image::{GrayImage, ImageReader, Limits};

/// The memory that decoding a file may take: the formats pack no more into a byte, and a header says what it likes.
fn limits(bytes: &[u8]) -> Limits {
    const LEAST: u64 = 8 << 20;
    const OF_A_BYTE: u64 = 10_000;
    let mut limits = Limits::default();
    let worth = LEAST + OF_A_BYTE * bytes.len() as u64;
    limits.max_alloc = limits.max_alloc.map(|most| most.min(worth));
    limits
}

/// Whether these are the first bytes of a PNG or a JPEG file.
pub(super) fn is_encoded(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x89PNG\r\n\x1a\n") || bytes.starts_with(b"\xff\xd8\xff")
}

/// The image in a PNG or a JPEG file, in grey; or what is wrong with it.
pub(super) fn decode(bytes: &[u8]) -> Result<GrayImage, String> {
    if !is_encoded(bytes) {
        return Err("is neither PNG nor JPEG: expected one of them".into());
    }
    let broken = |error: &dyn std::fmt::Display| format!("cannot be decoded: {error}; fetch it again");
    let mut reader =
        ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|error| broken(&error))?;
    reader.limits(limits(bytes));
    Ok(reader.decode().map_err(|error| broken(&error))?.into_luma8())
}
