//! Decodes image files.

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use image::{DynamicImage, GrayImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits};

use crate::dataset::list;
use crate::pixels::Image;

pub(super) const FORMATS: &str = "PNG, JPEG, WebP, BMP or GIF";
/// The extensions of files of these formats, in lower case.
pub(super) const EXTENSIONS: [&str; 6] = ["png", "jpg", "jpeg", "webp", "bmp", "gif"];

pub(super) fn extensions() -> String {
    list(EXTENSIONS)
}

/// The minimum difference between the channels of a coloured pixel. JPEG's rounding errors stay below it.
const COLOUR: u8 = 24;

#[derive(Debug)]
pub(super) enum Raw {
    /// A file in one of the formats. If it has several frames, the first is the image.
    Encoded(Vec<u8>),
    Grey(GrayImage),
}

/// The properties of an image that are known without decoding it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    /// Height and width.
    pub(super) sides: [usize; 2],
    pub(super) may_have_colour: bool,
}

impl Raw {
    /// Reads the header; the error describes the problem.
    pub(super) fn header(&self) -> Result<Header, String> {
        let ((width, height), may_have_colour) = match self {
            Self::Grey(image) => (image.dimensions(), false),
            Self::Encoded(bytes) => caught(|| {
                let decoder = decoder(bytes)?;
                Ok((decoder.dimensions(), decoder.color_type().has_color()))
            })?,
        };
        Ok(Header { sides: [height, width].map(|side| side as usize), may_have_colour })
    }

    /// Decodes the image to greyscale (1 channel) or to red, green and blue (3); the error describes the problem.
    pub(super) fn decode(self, channels: usize) -> Result<Image, String> {
        let image: DynamicImage = match self {
            Self::Grey(image) => image.into(),
            Self::Encoded(bytes) => caught(|| decoded(&bytes))?,
        };
        let shape = [image.height() as usize, image.width() as usize, channels];
        let levels = if channels == 1 { image.into_luma8().into_raw() } else { image.into_rgb8().into_raw() };
        Ok(Image::new(shape, levels))
    }

    pub(super) fn has_colour(self) -> Result<bool, String> {
        let is_coloured = |pixel: &[u8]| {
            let (least, most) = (pixel.iter().min(), pixel.iter().max());
            least.zip(most).is_some_and(|(least, most)| most - least >= COLOUR)
        };
        Ok(self.decode(3)?.levels.chunks_exact(3).any(is_coloured))
    }
}

/// Returns whether a file starts with the signature of one of the formats.
pub(super) fn is_encoded(bytes: &[u8]) -> bool {
    // The two letters of a BMP's signature may also start raw grey levels, so the size of its second header is checked too.
    let size = bytes.get(14..18).and_then(<[u8]>::first_chunk).map(|&size| u32::from_le_bytes(size));
    match image::guess_format(bytes) {
        Ok(ImageFormat::Bmp) => size.is_some_and(|size| [12, 40, 52, 56, 64, 108, 124].contains(&size)),
        Ok(ImageFormat::Png | ImageFormat::Jpeg | ImageFormat::WebP | ImageFormat::Gif) => true,
        _ => false,
    }
}

/// Runs the decoder of a format, which may panic on a damaged file. The panic becomes an error, since damaged samples may be skipped.
fn caught<T>(decode: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|_| Err(broken(&"its decoder has panicked")))
}

/// Decodes a file as [`ImageReader::decode`] does, unless its header claims no pixels.
fn decoded(bytes: &[u8]) -> Result<DynamicImage, String> {
    let unreadable = |error: ImageError| broken(&error);
    // The decoder fills the missing part with grey, without an error.
    if image::guess_format(bytes).is_ok_and(|format| format == ImageFormat::Jpeg) && !is_whole_jpeg(bytes) {
        return Err(broken(&"the file ends within the image"));
    }
    let (mut decoder, mut limits) = (decoder(bytes)?, limits(bytes));
    limits.reserve(decoder.total_bytes()).map_err(unreadable)?;
    decoder.set_limits(limits).map_err(unreadable)?;
    DynamicImage::from_decoder(decoder).map_err(unreadable)
}

/// Returns whether an end marker follows the start of the first scan. Segments before it are skipped, since a thumbnail has an end marker of its own.
fn is_whole_jpeg(bytes: &[u8]) -> bool {
    const START_OF_SCAN: u8 = 0xda;
    const END: [u8; 2] = [0xff, 0xd9];
    let mut at = 2;
    while let Some(&[0xff, kind, high, low]) = bytes.get(at..).and_then(<[u8]>::first_chunk)
        && kind != START_OF_SCAN
    {
        // Any number of 0xff may precede a marker.
        at += if kind == 0xff { 1 } else { 2 + usize::from(u16::from_be_bytes([high, low])) };
    }
    bytes.get(at..).is_some_and(|scans| scans.windows(2).any(|pair| pair == END))
}

/// Returns the decoder of a file whose header has been read. Some formats allow sides of 0, to which no image can be resized.
fn decoder(bytes: &[u8]) -> Result<impl ImageDecoder, String> {
    if !is_encoded(bytes) {
        return Err(format!("is of an unknown format: expected {FORMATS}"));
    }
    let mut reader =
        ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|error| broken(&error))?;
    reader.limits(limits(bytes));
    let decoder = reader.into_decoder().map_err(|error| broken(&error))?;
    match decoder.dimensions() {
        (0, _) | (_, 0) => Err(broken(&"it has no pixels")),
        _ => Ok(decoder),
    }
}

/// Returns the memory limit for decoding a file. A header may claim any size, but most formats compress by no more than this factor. The pixels of a
/// WebP file may take no bits at all.
fn limits(bytes: &[u8]) -> Limits {
    const LEAST: u64 = 8 << 20;
    const OF_A_BYTE: u64 = 10_000;
    let mut limits = Limits::default();
    let worth = match image::guess_format(bytes) {
        Ok(ImageFormat::WebP) => u64::MAX,
        _ => LEAST + OF_A_BYTE * bytes.len() as u64,
    };
    limits.max_alloc = limits.max_alloc.map(|most| most.min(worth));
    limits
}

fn broken(error: &dyn std::fmt::Display) -> String {
    format!("cannot be decoded: {error}; fetch it again")
}
