//! Groups rows into series. Traits that all rows share are in the title, and the others are in the labels.

use std::collections::{BTreeMap, BTreeSet};

use super::row::Row;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Comparison {
    pub(super) title: String,
    pub(super) series: Vec<Series>,
}

/// One line of a figure.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Series {
    /// The algorithm, and the traits that differ between series.
    pub(super) label: String,
    /// Whether the others are compared with it.
    pub(super) baseline: bool,
    /// The rows, by size.
    pub(super) points: Vec<Row>,
}

/// The maximum number of lines that a reader can distinguish.
const MOST_SERIES: usize = 24;

impl Comparison {
    /// Returns the comparison of these rows, at least one.
    pub(super) fn of(rows: &[Row]) -> Result<Self, String> {
        refuse_mixed(rows)?;
        refuse_twice(rows)?;
        let by_file = files_overlap(rows);
        let first = traits(&rows[0], by_file);
        let shared: [bool; TRAITS] =
            std::array::from_fn(|index| rows.iter().all(|row| traits(row, by_file)[index] == first[index]));

        let mut series: Vec<Series> = Vec::new();
        for row in rows {
            let label = phrases(&row.algorithm, ", ", traits(row, by_file), shared.map(|shared| !shared));
            match series.iter_mut().find(|series| series.label == label) {
                Some(series) => series.points.push(row.clone()),
                None => {
                    series.push(Series {
                        label,
                        baseline: row.algorithm == "mpi",
                        points: vec![row.clone()],
                    });
                }
            }
        }
        if series.len() > MOST_SERIES {
            let count = series.len();
            return Err(format!(
                "{count} series are too many for one figure: {MOST_SERIES} can be distinguished"
            ));
        }
        for series in &mut series {
            series.points.sort_by_key(|row| row.bytes);
        }
        Ok(Self { title: phrases(&title(&rows[0].operation), ": ", first, shared), series })
    }
}

const TRAITS: usize = 7;

/// Returns the traits of a row besides algorithm and size, each as a phrase, which may be empty. The file is a trait only if nothing else
/// distinguishes two rows.
fn traits(row: &Row, by_file: bool) -> [String; TRAITS] {
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let optional = |is_shown: bool, phrase: &str| if is_shown { phrase.to_owned() } else { String::new() };
    [
        format!("{} rank{}", row.ranks, plural(row.ranks)),
        format!("{} node{}", row.nodes, plural(row.nodes)),
        format!("{} of {}", row.op, row.dtype),
        format!("over {}", row.transport),
        format!("{} memory", row.memory),
        optional(row.oversubscribed, "oversubscribed"),
        optional(by_file, &row.file),
    ]
}

/// Returns the head, followed by the selected phrases.
fn phrases(head: &str, then: &str, phrases: [String; TRAITS], wanted: [bool; TRAITS]) -> String {
    let wanted = phrases.into_iter().zip(wanted).filter(|(phrase, wanted)| *wanted && !phrase.is_empty());
    let wanted: Vec<_> = wanted.map(|(phrase, _)| phrase).collect();
    if wanted.is_empty() { head.to_owned() } else { format!("{head}{then}{}", wanted.join(", ")) }
}

fn title(operation: &str) -> String {
    let (first, rest) = operation.split_at_checked(1).unwrap_or_default();
    first.to_uppercase() + rest
}

/// Rejects rows of different operations, because their times cannot be compared.
fn refuse_mixed(rows: &[Row]) -> Result<(), String> {
    let first = &rows[0];
    match rows.iter().find(|row| row.operation != first.operation) {
        None => Ok(()),
        Some(Row { file, line, operation, .. }) => Err(format!(
            "`{file}`, line {line} is of {operation}, but earlier rows are of {}: choose one with --operation",
            first.operation
        )),
    }
}

/// Rejects two rows of the same series and size in one file, because the choice between them would be ambiguous.
fn refuse_twice(rows: &[Row]) -> Result<(), String> {
    let mut lines = BTreeMap::new();
    for row in rows {
        let key = (&row.algorithm, row.bytes, traits(row, true));
        if let Some(line) = lines.insert(key, row.line) {
            let Row { file, algorithm, bytes, .. } = row;
            let now = row.line;
            return Err(format!(
                "`{file}`, line {now}: {algorithm} at {bytes} B was measured in line {line} already; put each run into its own file"
            ));
        }
    }
    Ok(())
}

/// Returns whether two files have rows of the same series and size, as from runs before and after a change.
fn files_overlap(rows: &[Row]) -> bool {
    let mut seen = BTreeSet::new();
    !rows.iter().all(|row| seen.insert((&row.algorithm, row.bytes, traits(row, false))))
}

#[cfg(test)]
mod tests {

    use super::super::row::{read, tests::line};
    use super::*;

    fn rows(file: &str, lines: &[String]) -> Vec<Row> {
        read(file, &lines.join("\n"), None).unwrap()
    }

    fn labels(rows: &[Row]) -> Vec<String> {
        Comparison::of(rows).unwrap().series.into_iter().map(|series| series.label).collect()
    }

    #[test]
    fn title_contains_the_shared_traits() {
        let rows = rows("a.json", &[line("ring", 2, 16), line("mpi", 2, 16), line("ring", 2, 8)]);
        let Comparison { title, series } = Comparison::of(&rows).unwrap();
        assert_eq!(title, "All-reduce: 2 ranks, 1 node, sum of f32, over threads, slice memory");
        assert_eq!((series[0].label.as_str(), series[0].baseline), ("ring", false));
        assert_eq!((series[1].label.as_str(), series[1].baseline), ("mpi", true));
        assert_eq!(series[0].points.iter().map(|point| point.bytes).collect::<Vec<_>>(), [8, 16]);
    }

    #[test]
    fn labels_contain_the_differing_traits() {
        let other = line("ring", 4, 8).replace("\"f32\"", "\"bf16\"").replace("slice", "registered");
        let rows = rows("a.json", &[line("ring", 2, 8), other]);
        assert_eq!(
            labels(&rows),
            ["ring, 2 ranks, sum of f32, slice memory", "ring, 4 ranks, sum of bf16, registered memory"]
        );
        assert_eq!(Comparison::of(&rows).unwrap().title, "All-reduce: 1 node, over threads");
    }

    #[test]
    fn figure_shows_one_operation() {
        let broadcast = line("tree", 2, 8).replace("\"bytes\"", "\"operation\":\"broadcast\",\"bytes\"");
        let text = [line("ring", 2, 8), broadcast].join("\n");
        let why = Comparison::of(&read("a.json", &text, None).unwrap()).unwrap_err();
        assert_eq!(
            why,
            "`a.json`, line 2 is of broadcast, but earlier rows are of all-reduce: choose one with --operation"
        );
        let chosen = read("a.json", &text, Some(unisono::Operation::Broadcast { root: 0 }.into())).unwrap();
        assert!(Comparison::of(&chosen).unwrap().title.starts_with("Broadcast: 2 ranks"));
        assert_eq!(
            read("a.json", &text, Some(unisono::Operation::Gather { root: 0 }.into())).unwrap_err(),
            "`a.json` has no rows of gather"
        );
    }

    #[test]
    fn labels_contain_the_file_only_if_needed() {
        let before = rows("before.json", &[line("ring", 2, 8)]);
        let after = rows("after.json", &[line("ring", 2, 8)]);
        assert_eq!(labels(&[before.clone(), after].concat()), ["ring, before.json", "ring, after.json"]);
        let larger = rows("larger.json", &[line("ring", 2, 16)]);
        assert_eq!(labels(&[before, larger].concat()), ["ring"]);
    }

    #[test]
    fn rows_that_cannot_be_drawn_are_refused() {
        let twice = rows("a.json", &[line("ring", 2, 8), line("tree", 2, 8), line("ring", 2, 8)]);
        let why = Comparison::of(&twice).unwrap_err();
        assert!(why.contains("`a.json`, line 3: ring at 8 B was measured in line 1 already"), "{why}");
        let many: Vec<_> = (1..=25).map(|ranks| line("ring", ranks, 8)).collect();
        assert!(Comparison::of(&rows("a.json", &many)).unwrap_err().contains("25 series are too many"));
    }
}
