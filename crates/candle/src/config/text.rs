//! Serialises values of a file in the syntax of the command line, by `FromStr` and `Display`.

use std::fmt::Display;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::{Deserializer, Error};
use serde::ser::Serializer;

/// A text, which a file may write as a number: `staleness = 2`.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text as on the command line, or a number")]
enum Text {
    Plain(String),
    Integer(i64),
    Float(f64),
    /// The parser of the value refuses it, and says what it expects.
    Boolean(bool),
}

pub(crate) fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

pub(crate) fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    let text = match Text::deserialize(deserializer)? {
        Text::Plain(text) => text,
        Text::Integer(number) => number.to_string(),
        Text::Float(number) => number.to_string(),
        Text::Boolean(value) => value.to_string(),
    };
    text.parse().map_err(Error::custom)
}

/// Applies this syntax to optional values.
pub(super) mod option {
    use super::*;

    pub(crate) fn serialize<T: Display, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.collect_str(value),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        super::deserialize(deserializer).map(Some)
    }
}
