//! Reads the rows of a benchmark.

use serde::Deserialize;
use unisono_bench::Operation;

/// The fields of a row of `unisono bench --format json` that a figure needs. Others are ignored.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Row {
    #[serde(skip)]
    pub(super) file: String,
    #[serde(skip)]
    pub(super) line: usize,
    pub(super) algorithm: String,
    /// Older rows lack this field. They are all-reduces.
    #[serde(default = "all_reduce")]
    pub(super) operation: String,
    pub(super) bytes: u64,
    pub(super) dtype: String,
    pub(super) op: String,
    pub(super) ranks: usize,
    pub(super) nodes: usize,
    pub(super) transport: String,
    pub(super) memory: String,
    pub(super) time_us: Times,
    pub(super) busbw_gb_per_s: f64,
    /// `None` if results were not checked.
    wrong: Option<u64>,
    #[serde(default)]
    pub(super) oversubscribed: bool,
}

fn all_reduce() -> String {
    unisono::Operation::AllReduce.name().to_owned()
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(super) struct Times {
    pub(super) min: f64,
    pub(super) p50: f64,
    pub(super) p95: f64,
}

impl Row {
    /// Returns the reason why the row cannot be drawn, if there is one.
    fn defect(&self) -> Option<String> {
        let Times { min, p50, p95 } = self.time_us;
        if let Some(wrong @ 1..) = self.wrong {
            Some(format!("{wrong} elements were wrong, so the times are meaningless"))
        } else if self.bytes == 0 {
            Some(format!(
                "{} of 0 bytes cannot be drawn on a logarithmic axis: choose another --operation",
                self.operation
            ))
        } else if !(0.0 < min && min <= p50 && p50 <= p95) {
            Some(format!("expected times with 0 < min <= p50 <= p95, not {min}, {p50} and {p95}"))
        } else if self.busbw_gb_per_s < 0.0 {
            Some(format!("a bandwidth cannot be {} GB/s", self.busbw_gb_per_s))
        } else {
            None
        }
    }
}

/// Reads the rows of a file, one JSON object per line. If an operation is given, returns only its rows.
pub(super) fn read(file: &str, text: &str, operation: Option<Operation>) -> Result<Vec<Row>, String> {
    let lines = text.lines().zip(1..).filter(|(text, _)| !text.trim().is_empty());
    let at_line = |line: usize, why: String| format!("`{file}`, line {line}: {why}");
    let rows = lines.map(|(text, line)| row(file, line, text).map_err(|why| at_line(line, why)));
    let mut rows: Vec<_> = rows.collect::<Result<_, _>>()?;
    if rows.is_empty() {
        return Err(format!("`{file}` has no rows: expected the output of `unisono bench --format json`"));
    }
    if let Some(operation) = operation {
        rows.retain(|row| row.operation == operation.name());
        if rows.is_empty() {
            return Err(format!("`{file}` has no rows of {operation}"));
        }
    }
    match rows.iter().find_map(|row| Some(at_line(row.line, row.defect()?))) {
        Some(why) => Err(why),
        None => Ok(rows),
    }
}

fn row(file: &str, line: usize, text: &str) -> Result<Row, String> {
    let row: Row = serde_json::from_str(text).map_err(|error| {
        let message = error.to_string();
        // Serde numbers every object as line 1, which is not its line in the file.
        let why = message.split(" at line ").next().unwrap_or_default();
        format!("not a row of `unisono bench --format json`: {why}")
    })?;
    Ok(Row { file: file.to_owned(), line, ..row })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A row as `unisono bench` writes it.
    pub(in super::super) fn line(algorithm: &str, ranks: usize, bytes: u64) -> String {
        format!(
            r#"{{"algorithm":"{algorithm}","ran":"ring","bytes":{bytes},"count":2,"dtype":"f32","op":"sum","ranks":{ranks},"nodes":1,"transport":"threads","memory":"slice","time_us":{{"min":1.0,"p50":2.0,"p95":3.0,"max":9.0}},"skew_percent":1.0,"algbw_gb_per_s":0.5,"busbw_gb_per_s":0.5,"wrong":0,"predicted_us":null,"oversubscribed":false}}"#
        )
    }

    #[test]
    fn rows_are_read() {
        let text = format!("{}\n\n{}\n", line("ring", 2, 8), line("auto", 2, 16));
        let rows = read("a.json", &text, None).unwrap();
        let seen: Vec<_> = rows.iter().map(|row| (row.algorithm.as_str(), row.bytes, row.line)).collect();
        assert_eq!(seen, [("ring", 8, 1), ("auto", 16, 3)]);
        assert_eq!(rows[0].time_us, Times { min: 1.0, p50: 2.0, p95: 3.0 });
    }

    #[test]
    fn invalid_rows_are_named() {
        let row = line("ring", 2, 8);
        for (text, expected) in [
            (String::new(), "`a.json` has no rows"),
            (
                format!("{row}\nring 8"),
                "`a.json`, line 2: not a row of `unisono bench --format json`: expected",
            ),
            (row.replace("\"bytes\"", "\"size\""), "`a.json`, line 1: not a row of"),
            (row.replace("\"bytes\"", "\"size\""), "missing field `bytes`"),
            (row.replace("\"wrong\":0", "\"wrong\":3"), "line 1: 3 elements were wrong"),
            (row.replace("\"min\":1.0", "\"min\":0.0"), "0 < min <= p50 <= p95, not 0, 2 and 3"),
            (line("ring", 2, 0), "all-reduce of 0 bytes"),
        ] {
            let why = read("a.json", &text, None).unwrap_err();
            assert!(why.contains(expected) && !why.contains('\n'), "{expected:?} in {why:?}");
        }
    }
}
