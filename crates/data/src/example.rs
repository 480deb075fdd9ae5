//! `tf.train.Example`, the content of TensorFlow's records. The field numbers are those of TensorFlow's `example.proto` and
//! `feature.proto`.

use std::collections::HashMap;

use image::GrayImage;
use prost::Message;

use super::decoding::{FORMATS, Raw, is_encoded};

#[derive(Clone, PartialEq, Message)]
pub(super) struct Example {
    #[prost(message, optional, tag = "1")]
    pub(super) features: Option<Features>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Features {
    #[prost(map = "string, message", tag = "1")]
    pub(super) feature: HashMap<String, Feature>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Feature {
    #[prost(oneof = "Values", tags = "1, 2, 3")]
    pub(super) values: Option<Values>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Values {
    #[prost(message, tag = "1")]
    Bytes(BytesList),
    #[prost(message, tag = "2")]
    Floats(FloatList),
    #[prost(message, tag = "3")]
    Integers(Int64List),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct BytesList {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub(super) value: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct FloatList {
    #[prost(float, repeated, tag = "1")]
    pub(super) value: Vec<f32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Int64List {
    #[prost(int64, repeated, tag = "1")]
    pub(super) value: Vec<i64>,
}

/// Accepted names of features, the more specific first.
const IMAGE: [&str; 2] = ["image/encoded", "image"];
const LABEL: [&str; 2] = ["image/class/label", "label"];
const HEIGHT: [&str; 2] = ["image/height", "height"];
const WIDTH: [&str; 2] = ["image/width", "width"];

impl Example {
    /// Decodes a record; the error describes the problem.
    pub(super) fn read(record: &[u8]) -> Result<Self, String> {
        Self::decode(record).map_err(|error| format!("does not contain a `tf.train.Example`: {error}"))
    }

    fn values(&self, name: &str) -> Option<&Values> {
        self.features.as_ref()?.feature.get(name)?.values.as_ref()
    }

    fn integer(&self, names: [&str; 2]) -> Option<i64> {
        names.iter().find_map(|name| match self.values(name) {
            Some(Values::Integers(list)) => list.value.first().copied(),
            _ => None,
        })
    }

    pub(super) fn label(&self) -> Result<u32, String> {
        let label = self.integer(LABEL).ok_or_else(|| self.lacks(LABEL, "int64"))?;
        label.try_into().map_err(|_| format!("has the label {label}: expected one from 0 to {}", u32::MAX))
    }

    /// Returns the image. Bytes in no known format are grey levels, with the height and width in the example, or of a square image.
    pub(super) fn image(&self) -> Result<Raw, String> {
        let bytes = IMAGE.iter().find_map(|name| match self.values(name) {
            Some(Values::Bytes(list)) => list.value.first(),
            _ => None,
        });
        let bytes = bytes.ok_or_else(|| self.lacks(IMAGE, "bytes"))?;
        if is_encoded(bytes) {
            return Ok(Raw::Encoded(bytes.clone()));
        }
        let (height, width) = match (self.integer(HEIGHT), self.integer(WIDTH)) {
            (Some(height), Some(width)) => (height, width),
            _ => (bytes.len().isqrt() as i64, bytes.len().isqrt() as i64),
        };
        let fits = height > 0 && width > 0 && height.checked_mul(width) == Some(bytes.len() as i64);
        let sides = (u32::try_from(width), u32::try_from(height));
        if let (true, (Ok(width), Ok(height))) = (fits, sides)
            && let Some(image) = GrayImage::from_raw(width, height, bytes.clone())
        {
            return Ok(Raw::Grey(image));
        }
        Err(format!(
            "has an image of {} bytes: expected {FORMATS}, or {height}x{width} grey levels (as `{}` and `{}` say, or else \
             a square)",
            bytes.len(),
            HEIGHT[0],
            WIDTH[0]
        ))
    }

    fn lacks(&self, [first, second]: [&str; 2], kind: &str) -> String {
        let mut names: Vec<_> = self.features.iter().flat_map(|features| features.feature.keys()).collect();
        names.sort();
        format!("has no feature `{first}` or `{second}` of {kind}: expected one of them; there are {names:?}")
    }
}
