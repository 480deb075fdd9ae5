//! The header of a table: which column is what.

use std::collections::HashSet;
use std::path::Path;

use super::{Table, finite, names};
use crate::error::DataError;
use crate::schema::Column;
use crate::schema::{Schema, list};

/// What is wrong with a first line that is like the others.
const IS_ROW: &str =
    "is a row of numbers, and no header: expected a line with the names of the columns before it";

/// Which columns are taken, and for what.
pub(super) struct Layout {
    /// The features, in their order.
    pub(super) features: Vec<usize>,
    pub(super) label: Option<usize>,
}

impl Layout {
    /// All columns: the one called `label`, or else the last, is the label. Or what is wrong with the header.
    pub(super) fn of(header: &[String]) -> Result<Self, String> {
        if header.len() < 2 {
            return Err(format!("has {} columns: expected features and a label", header.len()));
        }
        let label = header.iter().position(|name| name == "label").unwrap_or(header.len() - 1);
        Ok(Self {
            features: (0..header.len()).filter(|&column| column != label).collect(),
            label: Some(label),
        })
    }

    /// The columns that are known, by their names; or what is wrong with the header.
    pub(super) fn by(header: &[String], known: &Schema) -> Result<Self, String> {
        let place = |name: &str| header.iter().position(|found| found == name);
        let mut features = Vec::new();
        for Column { name, .. } in &known.columns {
            let Some(place) = place(name) else {
                let expected = list(known.columns.iter().map(|column| column.name.as_str()));
                let found = list(names(header));
                return Err(format!(
                    "has no column `{name}`: the model was trained on {expected}, and the columns are {found}"
                ));
            };
            features.push(place);
        }
        Ok(Self { features, label: known.label.as_deref().and_then(place) })
    }
}

/// What is wrong with a header by itself.
pub(super) fn problem(header: &[String]) -> Option<String> {
    let mut seen = HashSet::new();
    let twice = header.iter().find(|&name| !seen.insert(name))?;
    if finite(twice).is_some() {
        return Some(IS_ROW.to_owned());
    }
    Some(format!("has two columns called `{twice}`: expected a name for each"))
}

/// Refuses a table whose first line is a row like the others: its features are numbers, and its label is a number, or that of
/// other rows. (Numbers from 0 on are names that some programs give.)
pub(super) fn check(path: &Path, table: &Table) -> Result<(), DataError> {
    let Table { features, label: Some(label), labels: Some(labels), .. } = table else { return Ok(()) };
    let mut all = names(features).chain([label.as_str()]).enumerate();
    let is_counted = all.all(|(at, name)| name.parse() == Ok(at));
    let is_row = names(features).all(|name| finite(name).is_some());
    if is_row && !is_counted && (finite(label).is_some() || labels.contains(label)) {
        return Err(DataError::Line { path: path.into(), line: 1, problem: IS_ROW.to_owned() });
    }
    Ok(())
}
