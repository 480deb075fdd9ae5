//! The labels of a table's rows, and their classes.

use std::collections::{BTreeSet, HashMap};

use super::finite;
use crate::error::DataError;

pub(super) enum Targets {
    Classes(Names),
    /// The numbers that a regression predicts, most of which differ.
    Numbers(Vec<f32>),
}

impl Targets {
    /// Adds the label of a row. The error names the expected value.
    pub(super) fn push(&mut self, label: &str) -> Result<(), &'static str> {
        match self {
            Self::Classes(_) if label.is_empty() => return Err("label"),
            Self::Classes(names) => names.push(label),
            Self::Numbers(numbers) => numbers.push(finite(label).ok_or("finite number")?),
        }
        Ok(())
    }

    pub(super) fn has_class(&self, name: &str) -> bool {
        matches!(self, Self::Classes(names) if names.places.contains_key(name))
    }
}

#[derive(Default)]
pub(super) struct Names {
    /// The distinct labels, in order of first occurrence.
    distinct: Vec<String>,
    /// The index of each label in `distinct`.
    places: HashMap<String, u32>,
    /// The index of each row's label.
    rows: Vec<u32>,
}

impl Names {
    fn push(&mut self, label: &str) {
        let place = self.places.get(label).copied().unwrap_or_else(|| {
            let place = self.distinct.len() as u32;
            self.distinct.push(label.to_owned());
            self.places.insert(label.to_owned(), place);
            place
        });
        self.rows.push(place);
    }

    /// Returns the classes in order, and the class of each row.
    pub(super) fn numbered(&self) -> (Vec<String>, Vec<u32>) {
        let (classes, numbers) = number(&self.distinct);
        (classes, self.rows.iter().map(|&place| numbers[place as usize]).collect())
    }

    /// Returns the class of each row, which `number` derives from the label.
    pub(super) fn numbered_by(
        &self,
        number: impl Fn(&str) -> Result<u32, DataError>,
    ) -> Result<Vec<u32>, DataError> {
        let numbers: Vec<_> = self.distinct.iter().map(|label| number(label)).collect::<Result<_, _>>()?;
        Ok(self.rows.iter().map(|&place| numbers[place as usize]).collect())
    }

    /// Returns an error for labels from which a model cannot learn: equal in all rows, or continuous quantities, which hardly ever repeat. The error
    /// describes the problem.
    pub(super) fn check_classes(&self) -> Result<(), String> {
        // Fractions that are classes have few distinct values.
        const MOST_FRACTIONS: usize = 100;
        let (found, rows) = (self.distinct.len(), self.rows.len());
        if let [only] = &*self.distinct {
            return Err(format!("the label is `{only}` in all {rows} rows: expected at least two classes"));
        }
        let all = |is_so: &dyn Fn(&str) -> bool| self.distinct.iter().all(|label| is_so(label));
        let is_number = |label: &str| label.parse::<f64>().is_ok();
        let is_missing = |label: &&String| label.parse::<f64>().is_ok_and(f64::is_nan);
        if all(&is_number)
            && let Some(missing) = self.distinct.iter().find(is_missing)
        {
            return Err(format!("the label of a row is `{missing}`: expected a class in every row"));
        }
        let has_fractions = !all(&|label| label.parse::<i64>().is_ok());
        let is_rarely_twice = found > 10 && 2 * found > rows;
        if all(&is_number) && (is_rarely_twice || (has_fractions && found > MOST_FRACTIONS)) {
            return Err(format!(
                "the label has {found} different numbers in {rows} rows, like a continuous quantity: expected classes (to predict \
                 the quantity itself, name its column: --target, Options::target)"
            ));
        }
        Ok(())
    }
}

/// Returns the distinct labels in order, and the index of each label among them.
pub(super) fn number(labels: &[String]) -> (Vec<String>, Vec<u32>) {
    /// Sorts and deduplicates `labels`; returns them, and the index of each label.
    fn places<T: Ord + ToString>(labels: &[T]) -> (Vec<String>, Vec<u32>) {
        let names: Vec<&T> = labels.iter().collect::<BTreeSet<_>>().into_iter().collect();
        let place = |label: &T| names.partition_point(|&name| name < label) as u32;
        let places = labels.iter().map(place).collect();
        (names.into_iter().map(T::to_string).collect(), places)
    }
    match labels.iter().map(|label| label.parse()).collect::<Result<Vec<i64>, _>>() {
        Ok(numbers) => places(&numbers),
        Err(_) => places(labels),
    }
}
