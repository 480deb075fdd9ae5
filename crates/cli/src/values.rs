//! Parsers of option values. `--help` lists the possible values.

use std::ffi::OsStr;
use std::fmt::Display;
use std::str::FromStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Command, Error};
use unisono::size::bytes;

/// The maximum number of ranks that a command starts, draws or proves.
pub(super) const MOST_RANKS: usize = 1024;
/// A year in seconds, the longest wait that options accept.
pub(super) const LONGEST_S: u64 = 365 * 24 * 3600;

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

/// The largest size in bytes. Sums over a whole world stay far below overflow.
const MOST_BYTES: usize = 1 << 40;

#[cfg(feature = "service")]
pub(super) fn size_or_none(text: &str) -> Result<usize, String> {
    let size_bytes = bytes(text).filter(|&size_bytes| size_bytes <= MOST_BYTES);
    size_bytes.ok_or_else(|| "expected 0 to 1024G bytes, such as 100M".to_owned())
}

/// Array sizes in bytes, ascending.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sizes(pub(super) Vec<usize>);

/// Parses one size, or a range: `MIN:MAX[:FACTOR]`.
pub(super) fn sizes(text: &str) -> Result<Sizes, String> {
    let expected = || "expected a size from 1 to 1024G bytes, such as 100M, or MIN:MAX[:FACTOR] with a FACTOR above 1, such as 8:16M:4";
    let parts: Vec<_> = text.split(':').collect();
    let (least, most, factor) = match parts[..] {
        [one] => (one, one, "2"),
        [least, most] => (least, most, "2"),
        [least, most, factor] => (least, most, factor),
        _ => return Err(expected().to_owned()),
    };
    let factor = factor.parse::<usize>().ok().filter(|&factor| factor > 1).ok_or_else(expected)?;
    let (least, most) = (bytes(least).ok_or_else(expected)?, bytes(most).ok_or_else(expected)?);
    if least < 1 || least > most || most > MOST_BYTES {
        return Err(expected().to_owned());
    }
    let sizes = std::iter::successors(Some(least), |size| size.checked_mul(factor));
    Ok(Sizes(sizes.take_while(|&size| size <= most).collect()))
}

#[cfg(feature = "candle")]
pub(super) fn count(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|&number| number > 0);
    number.ok_or_else(|| "expected a whole number above 0".to_owned())
}

/// Returns a parser of values with these names. `parse` may accept other values that cannot be listed.
pub(super) fn named<P>(names: impl IntoIterator<Item = &'static str>, parse: P) -> Named<P> {
    Named { names: names.into_iter().collect(), parse }
}

/// The values that one name stands for: a single value, or all.
#[derive(Debug, Clone)]
pub(super) struct OneOrAll<T>(Vec<T>);

impl<T: Copy + PartialEq> OneOrAll<T> {
    pub(super) fn distinct(named: &[Self]) -> Vec<T> {
        distinct(named.iter().flat_map(|Self(values)| values.iter().copied()))
    }
}

pub(super) fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for value in values {
        if !distinct.contains(&value) {
            distinct.push(value);
        }
    }
    distinct
}

pub(super) fn one_or_all<T, const N: usize>(
    all: [T; N],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = OneOrAll<T>>
where
    T: FromStr<Err: std::error::Error + Send + Sync + 'static> + Copy + Send + Sync + 'static,
{
    let parse = move |text: &str| match text {
        "all" => Ok(OneOrAll(all.to_vec())),
        one => one.parse().map(|one| OneOrAll(vec![one])),
    };
    named(["all"].into_iter().chain(all.map(name)), parse)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_named_once() {
        let named = [OneOrAll(vec![3]), OneOrAll(vec![1, 2, 3]), OneOrAll(vec![1])];
        assert_eq!(OneOrAll::distinct(&named), [3, 1, 2]);
    }

    #[test]
    fn sizes_are_a_single_size_or_a_range() {
        assert_eq!(sizes("8:64").unwrap().0, [8, 16, 32, 64]);
        assert_eq!(sizes("1K:20K:4").unwrap().0, [1024, 4096, 16384]);
        assert_eq!(sizes("2M").unwrap().0, [2 << 20]);
        for invalid in ["", "0", "8:4", "0:8", "8:16:1", "8:16:2:2", "8:1T", "x:8", "8:1025G"] {
            assert!(sizes(invalid).unwrap_err().contains("MIN:MAX"), "{invalid}");
        }
    }
}
