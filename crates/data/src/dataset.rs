//! A data set, the kind of its samples, and the meaning of its numbers.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::{DataError, Normalization, Split};

/// A data set: the kind of its samples, the training samples and the held-out samples.
///
/// Threads share it behind an [`Arc`](std::sync::Arc).
#[derive(Debug, Clone)]
pub struct Dataset {
    /// The kind of a sample.
    pub kind: Kind,
    /// The training samples.
    pub train: Arc<dyn Split>,
    /// The held-out samples.
    pub test: Arc<dyn Split>,
    /// The names of classes and columns.
    pub schema: Schema,
}

impl Dataset {
    /// Returns the notes for the user on how image files are read, one line each: how many are resized, which files are skipped.
    pub fn notices(&self) -> &[String] {
        self.train.notices()
    }

    /// Returns a hash that detects changed data. It covers all samples or, if images stay in their files, the properties that are known without
    /// decoding them (names and sizes of files, checksums of records).
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn fingerprint(&self) -> Result<u64, DataError> {
        let mut hasher = Xxh3::new();
        self.train.hash(&mut hasher)?;
        self.test.hash(&mut hasher)?;
        Ok(hasher.digest())
    }
}

impl PartialEq for Dataset {
    fn eq(&self, other: &Self) -> bool {
        (&self.kind, &self.schema) == (&other.kind, &other.schema)
            && *self.train == *other.train
            && *self.test == *other.test
    }
}

/// The default for descriptions without `channels`: old ones predate colour, and those of greyscale images still omit the field.
fn grey() -> usize {
    1
}

fn is_grey(channels: &usize) -> bool {
    *channels == grey()
}

/// The kind of a sample, which determines the input and output of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// An image and its class.
    Images {
        /// Rows of pixels.
        height: usize,
        /// Columns of pixels.
        width: usize,
        /// Channels of a pixel: 1 for greyscale, 3 for red, green and blue.
        #[serde(default = "grey", skip_serializing_if = "is_grey")]
        channels: usize,
        /// Number of classes; labels run from 0 to `classes - 1`.
        classes: usize,
    },
    /// A row of numbers, and its class or numeric target.
    Table {
        /// Numbers in a row.
        features: usize,
        /// Number of classes; labels run from 0 to `classes - 1`. 1 for a regression, whose targets are numbers.
        classes: usize,
    },
    /// A window of characters, and for each of them the character that follows.
    Text {
        /// Characters in a window.
        context: usize,
        /// The distinct characters, sorted; a token is an index into this list.
        vocabulary: Vec<char>,
    },
}

/// The meaning of a data set's numbers. Checkpoints store it, so that a model reports the class names of its training data, and matches other data by
/// name instead of by position.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Schema {
    /// The name of each class; empty if classes are numbers.
    pub classes: Vec<String>,
    /// The columns of a table that the model uses, in its input order.
    pub columns: Vec<Column>,
    /// The column of a table that holds the class; `None` if the table has none.
    pub label: Option<String>,
    /// The column that holds the target of a regression, with the statistics by which targets are standardised; `None` for classes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Column>,
    /// The statistics by which images are normalised; `None` for those of MNIST.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalization: Option<Normalization>,
}

/// A column of a table, with its statistics over the training rows, by which it is standardised.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// The name in the header.
    pub name: String,
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub deviation: f64,
}

impl Column {
    pub(super) fn standardised(&self, value: f32) -> f32 {
        // A constant column carries no information, but a test row may have another value.
        let deviation = if self.deviation > 0.0 { self.deviation } else { 1.0 };
        ((f64::from(value) - self.mean) / deviation) as f32
    }

    /// Returns the original value of a standardised one, rounded to the decimal place that `f32` preserves at this distance from the mean.
    pub fn original(&self, standardised: f32) -> f64 {
        let distance = f64::from(standardised) * self.deviation;
        let value = distance + self.mean;
        // The standardised value was rounded by up to 2^-24 of the distance, which is less than half of this place.
        let place = 10_f64.powf((distance.abs() * 1.2e-6).log10().floor());
        if place > 0.0 { (value / place).round() * place } else { value }
    }
}

impl Schema {
    /// Returns the name of a class; its number if it has no name.
    pub fn class(&self, class: u32) -> String {
        self.classes.get(class as usize).cloned().unwrap_or_else(|| class.to_string())
    }

    /// Returns the number of the class with this name, of this many classes. If all names are integers, 1 equals 01. The error describes the problem
    /// of the name.
    pub(super) fn number(&self, name: &str, classes: usize) -> Result<u32, String> {
        let place = self.classes.iter().position(|known| known == name).or_else(|| {
            let number: i64 = name.parse().ok()?;
            if self.classes.is_empty() {
                return usize::try_from(number).ok().filter(|&class| class < classes);
            }
            self.classes.iter().position(|known| known.parse() == Ok(number))
        });
        place.and_then(|place| place.try_into().ok()).ok_or_else(|| {
            let known = match self.classes.is_empty() {
                true => format!("the numbers from 0 to {}", classes.saturating_sub(1)),
                false => list(&self.classes),
            };
            format!("is not a class that the model knows: expected {known}")
        })
    }

    /// Returns the first difference from another schema that matters to a model, as a clause: "class 1 is …, but was …".
    pub fn difference(&self, other: &Self) -> Option<String> {
        let columns = |schema: &Self| list(schema.columns.iter().map(|column| &column.name));
        if self.classes != other.classes {
            let at = (0..).find(|&at| self.classes.get(at) != other.classes.get(at)).expect("they differ");
            let name = |schema: &Self| {
                schema.classes.get(at).map_or("missing".to_owned(), |name| format!("`{name}`"))
            };
            return Some(format!("class {at} is {}, but was {}", name(other), name(self)));
        }
        if columns(self) != columns(other) {
            return Some(format!("the columns are {}, but were {}", columns(other), columns(self)));
        }
        let normalization = |schema: &Self| schema.normalization.clone().unwrap_or_default();
        let (own, others) = (normalization(self), normalization(other));
        (own != others).then(|| format!("images are normalised by {others}, but were by {own} (--normalize)"))
    }
}

/// Lists names for a message, up to a readable number.
pub(super) fn list(names: impl IntoIterator<Item: AsRef<str>>) -> String {
    const MOST: usize = 20;
    let mut names: Vec<String> = names.into_iter().map(|name| format!("`{}`", name.as_ref())).collect();
    let more = names.len().saturating_sub(MOST);
    names.truncate(MOST);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    names.join(", ") + &more
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(classes: &[&str]) -> Schema {
        Schema { classes: classes.iter().map(|&name| name.to_owned()).collect(), ..Schema::default() }
    }

    #[test]
    fn classes_are_found_by_name_or_by_number() {
        let (words, numbers, unnamed) = (named(&["cat", "dog"]), named(&["3", "10"]), Schema::default());
        assert_eq!(
            (words.number("dog", 2).ok(), words.number("cow", 2).ok(), words.number("1", 2).ok()),
            (Some(1), None, None)
        );
        assert_eq!((numbers.number("010", 2).ok(), numbers.number("0", 2).ok()), (Some(1), None));
        assert_eq!(
            (unnamed.number("09", 10).ok(), unnamed.number("10", 10).ok(), unnamed.number("-1", 10).ok()),
            (Some(9), None, None)
        );
        assert_eq!((words.class(1), unnamed.class(1)), ("dog".to_owned(), "1".to_owned()));
    }

    #[test]
    fn original_values_are_recovered_from_standardised_ones() {
        for (mean, deviation, values) in
            [(52_000.0, 90_000.0, [62_300.0, -0.25, 1e6]), (0.5, 0.01, [0.49, 0.512, 0.5])]
        {
            let column = Column { name: String::new(), mean, deviation };
            let back = values.map(|value: f32| column.original(column.standardised(value)) as f32);
            assert_eq!(back, values);
        }
        let constant = Column { name: String::new(), mean: 3.0, deviation: 0.0 };
        assert_eq!(constant.original(constant.standardised(3.0)), 3.0);
    }

    #[test]
    fn the_first_difference_is_named() {
        let (old, new) = (named(&["ant", "cat"]), named(&["ant", "dog"]));
        assert_eq!(old.difference(&old), None);
        assert_eq!(old.difference(&new).unwrap(), "class 1 is `dog`, but was `cat`");
        assert_eq!(old.difference(&named(&["ant"])).unwrap(), "class 1 is missing, but was `cat`");
        let table = |names: &[&str]| {
            let column = |&name: &&str| Column { name: name.to_owned(), mean: 0.0, deviation: 1.0 };
            Schema { columns: names.iter().map(column).collect(), ..Schema::default() }
        };
        assert_eq!(
            table(&["a", "b"]).difference(&table(&["b", "a"])).unwrap(),
            "the columns are `b`, `a`, but were `a`, `b`"
        );
        let normalized = |mean| {
            let normalization = Some(Normalization { mean: vec![mean], deviation: vec![0.3081] });
            Schema { normalization, ..Schema::default() }
        };
        assert_eq!(Schema::default().difference(&normalized(0.1307)), None);
        let other = Schema::default().difference(&normalized(0.5)).unwrap();
        assert!(
            other.starts_with("images are normalised by 0.5/0.3081, but were by 0.1307/0.3081"),
            "{other}"
        );
    }
}
