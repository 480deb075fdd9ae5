//! The header of a table, which determines the role of each column.

use std::collections::HashSet;
use std::path::Path;

use super::{Table, finite};
use crate::dataset::{Column, Schema, list};
use crate::error::DataError;

/// The problem of a first line that looks like a row.
const IS_ROW: &str =
    "is a row of numbers, not a header: expected a line with the names of the columns before it";

/// The columns to use.
#[derive(Default)]
pub(super) struct Layout {
    pub(super) features: Vec<usize>,
    pub(super) label: Option<usize>,
}

impl Layout {
    /// Uses all columns. The one called `target`, or else `label` or the last one, is the label. The error describes the problem of the header.
    pub(super) fn of(header: &[String], target: Option<&str>) -> Result<Self, String> {
        if header.len() < 2 {
            return Err(format!("has {} columns: expected features and a label", header.len()));
        }
        let is_unnamed = |name: &&String| name.is_empty() || name.starts_with("__index_level_");
        if let Some(name) = header.iter().find(is_unnamed) {
            return Err(format!(
                "has a column without a name, `{name}`: expected a name for each (pandas writes row numbers there, unless \
                 `index=False`)"
            ));
        }
        let label = header.iter().position(|name| name == target.unwrap_or("label"));
        if let (None, Some(target)) = (label, target) {
            let expected = list(header);
            return Err(format!("has no column `{target}` to predict: expected one of {expected}"));
        }
        let label = label.unwrap_or(header.len() - 1);
        let features = (0..header.len()).filter(|&column| column != label).collect();
        Ok(Self { features, label: Some(label) })
    }

    /// Uses the columns of a schema, found by name. The error describes the problem of the header.
    pub(super) fn by(header: &[String], known: &Schema) -> Result<Self, String> {
        let place = |name: &str| header.iter().position(|found| found == name);
        let feature = |Column { name, .. }: &Column| {
            place(name).ok_or_else(|| {
                let expected = list(known.columns.iter().map(|column| &column.name));
                let found = list(header);
                format!(
                    "has no column `{name}`: the model was trained on {expected}, but the columns are {found}"
                )
            })
        };
        let features = known.columns.iter().map(feature).collect::<Result<_, _>>()?;
        Ok(Self { features, label: known.label.as_deref().and_then(place) })
    }
}

pub(super) fn problem(header: &[String]) -> Option<String> {
    let mut seen = HashSet::new();
    let twice = header.iter().find(|&name| !seen.insert(name))?;
    if finite(twice).is_some() {
        return Some(IS_ROW.to_owned());
    }
    Some(format!("has two columns called `{twice}`: expected a name for each"))
}

/// Returns an error for a table whose first line looks like a row: its features are numbers, and its label is a number or occurs in other rows.
/// Accepts names that are numbers from 0 on, which some programs write.
pub(super) fn check(path: &Path, table: &Table) -> Result<(), DataError> {
    let Table { features, label: Some(label), targets: Some(targets), .. } = table else { return Ok(()) };
    let mut all = features.iter().chain([label]).enumerate();
    let is_counted = all.all(|(at, name)| name.parse() == Ok(at));
    let is_row = features.iter().all(|name| finite(name).is_some());
    if is_row && !is_counted && (finite(label).is_some() || targets.has_class(label)) {
        return Err(DataError::line(path, 1, IS_ROW));
    }
    Ok(())
}
