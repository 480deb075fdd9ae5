//! Parsers of option values. `--help` lists the possible values.

use std::ffi::OsStr;
use std::fmt::Display;
use std::str::FromStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Command, Error};
use unisono::size::bytes;

/// A year in seconds, the longest wait that options accept.
pub(super) const LONGEST_S: u64 = 365 * 24 * 3600;

/// Parses a whole number in a range.
pub(super) fn whole<N>(
    least: N,
    most: N,
) -> impl Fn(&str) -> Result<N, String> + Clone + Send + Sync + 'static
where
    N: FromStr + PartialOrd + Display + Copy + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| format!("expected a whole number from {least} to {most}"))
    }
}

/// Parses a size in bytes. Those of a whole world stay far below overflow.
pub(super) fn size(text: &str) -> Result<usize, String> {
    size_from(1, text)
}

/// Parses a size in bytes, or 0.
#[cfg(feature = "service")]
pub(super) fn size_or_none(text: &str) -> Result<usize, String> {
    size_from(0, text)
}

fn size_from(least: usize, text: &str) -> Result<usize, String> {
    let size_bytes = bytes(text).filter(|size_bytes| (least..=1 << 40).contains(size_bytes));
    size_bytes.ok_or_else(|| format!("expected {least} to 1024G bytes, such as 100M"))
}

/// Parses a whole number above 0.
#[cfg(feature = "candle")]
pub(super) fn count(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|&number| number > 0);
    number.ok_or_else(|| "expected a whole number above 0".to_owned())
}

/// Values with these names. The parser may accept others that cannot be listed.
pub(super) fn named<P>(names: impl IntoIterator<Item = &'static str>, parse: P) -> Named<P> {
    Named { names: names.into_iter().collect(), parse }
}

/// A parser that lists the names of its values.
#[derive(Debug, Clone)]
pub(super) struct Named<P> {
    names: Vec<&'static str>,
    parse: P,
}

impl<P: TypedValueParser> TypedValueParser for Named<P> {
    type Value = P::Value;

    fn parse_ref(&self, command: &Command, argument: Option<&Arg>, value: &OsStr) -> Result<P::Value, Error> {
        self.parse.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.names.iter().map(PossibleValue::new)))
    }
}
