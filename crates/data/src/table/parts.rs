//! The files of a table, in any format, one after the other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use super::{Layout, Names, RowWriter, Table, header, list, names};
use crate::error::DataError;
use crate::source::Options;

/// One of the files of a table.
pub(super) trait Part<'a>: Sized {
    /// Opens a file, and finds out what its columns are.
    fn open(path: &'a Path) -> Result<Self, DataError>;

    /// Returns the names of its columns.
    fn header(&self) -> &[String];

    /// Returns the error of a file whose header has this problem.
    fn refused(&self, problem: String) -> DataError;

    /// Adds its rows to a table.
    fn read(self, table: &mut Filling) -> Result<(), DataError>;
}

/// Reads the columns that `layout` selects from the header that `files` have in common; `path` names these.
pub(super) fn read<'a, P: Part<'a>>(
    path: &Path,
    files: &'a [PathBuf],
    options: &Options,
    layout: impl Fn(&[String]) -> Result<Layout, String>,
) -> Result<Table, DataError> {
    let (first, others) = files.split_first().expect("a name means a file");
    let part = guarded(first, || P::open(first))?;
    let header = part.header().to_vec();
    let columns = header::problem(&header).map_or_else(|| layout(&header), Err);
    let columns = columns.map_err(|problem| part.refused(problem))?;
    let mut table = Filling {
        rows: RowWriter::new(path, columns.features.len(), options.in_memory_bytes),
        labels: columns.label.map(|_| Names::default()),
        columns,
    };
    guarded(first, || part.read(&mut table))?;
    for file in others {
        let part = guarded(file, || P::open(file))?;
        if part.header() != header {
            let (found, expected) = (list(names(part.header())), list(names(&header)));
            let first = first.display();
            return Err(
                part.refused(format!("has the columns {found}: expected {expected}, as in `{first}`"))
            );
        }
        guarded(file, || part.read(&mut table))?;
    }
    table.finish(&header)
}

/// Guards the work on a file. A damaged one may make the library of its format panic, which is an error like others:
/// the partly filled value is dropped.
fn guarded<T>(path: &Path, work: impl FnOnce() -> Result<T, DataError>) -> Result<T, DataError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let problem = "is damaged, or of a kind that cannot be read: write it again".to_owned();
        Err(DataError::file(path, problem))
    })
}

/// A table that is being read.
pub(super) struct Filling<'a> {
    pub(super) columns: Layout,
    pub(super) rows: RowWriter<'a>,
    /// If there is a column for them.
    pub(super) labels: Option<Names>,
}

impl Filling<'_> {
    fn finish(self, header: &[String]) -> Result<Table, DataError> {
        let name = |column: usize| header[column].clone();
        Ok(Table {
            features: self.columns.features.into_iter().map(name).collect(),
            rows: self.rows.finish()?,
            label: self.columns.label.map(name),
            labels: self.labels,
        })
    }
}
