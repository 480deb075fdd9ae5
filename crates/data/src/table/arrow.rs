//! Reads Arrow files, a record batch at a time.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_ipc::reader::{read_dictionary, read_record_batch};
use arrow_schema::SchemaRef;

use self::messages::{Message, Messages};
use super::groups;
use super::parts::{self, Filling};
use crate::error::DataError;

mod messages;
mod values;

/// One of the files.
pub(super) struct Part<'a> {
    path: &'a Path,
    schema: SchemaRef,
    header: Vec<String>,
    messages: Messages,
    /// By their numbers, as far as they have been read.
    dictionaries: HashMap<i64, ArrayRef>,
}

impl<'a> parts::Part<'a> for Part<'a> {
    fn open(path: &'a Path) -> Result<Self, DataError> {
        let (schema, messages) = Messages::open(path)?;
        let header = schema.fields().iter().map(|field| field.name().clone()).collect();
        Ok(Self { path, schema: Arc::new(schema), header, messages, dictionaries: HashMap::new() })
    }

    fn header(&self) -> &[String] {
        &self.header
    }

    fn refused(&self, problem: String) -> DataError {
        DataError::file(self.path, problem)
    }

    fn read(mut self, table: &mut Filling) -> Result<(), DataError> {
        let features = table.columns.features.iter().copied();
        let columns: Vec<_> = features.chain(table.columns.label).collect();
        let mut before = 0;
        while let Some(message) = self.messages.next()? {
            let batch = self.decoded(message, &columns).map_err(|problem| {
                self.refused(format!("cannot be decoded from row {before} on: {problem}; write it again"))
            })?;
            let Some(batch) = batch else { continue };
            let rows = before..before + batch.num_rows();
            before = rows.end;
            let columns = columns.iter().copied().zip(batch.columns().iter().cloned()).collect();
            table.push_group(self.path, &self.header, &Group { columns, rows })?;
        }
        Ok(())
    }
}

impl Part<'_> {
    /// These columns of the rows in a message; `None` if it is a dictionary, to which later rows refer.
    fn decoded(&mut self, message: Message, columns: &[usize]) -> Result<Option<RecordBatch>, String> {
        message.check()?;
        let Message { header, body } = message;
        let (header, body) = (header.as_ref(), body.into());
        let version = header.version();
        let decoded = if let Some(batch) = header.header_as_record_batch() {
            let schema = Arc::clone(&self.schema);
            read_record_batch(&body, batch, schema, &self.dictionaries, Some(columns), &version).map(Some)
        } else if let Some(batch) = header.header_as_dictionary_batch() {
            read_dictionary(&body, batch, &self.schema, &mut self.dictionaries, &version).map(|()| None)
        } else {
            let kind = header.header_type();
            return Err(format!("there is a message of the kind {kind:?}: expected rows or a dictionary"));
        };
        decoded.map_err(|error| error.to_string())
    }
}

/// A record batch.
struct Group {
    /// By their places in the header, as far as they have been asked for.
    columns: HashMap<usize, ArrayRef>,
    rows: Range<usize>,
}

impl groups::Group for Group {
    fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    fn numbers(&self, column: usize) -> Result<Vec<f64>, String> {
        self.column(column, "numbers", values::numbers)
    }

    fn texts(&self, column: usize) -> Result<Vec<String>, String> {
        self.column(column, "words or whole numbers", values::texts)
    }
}

impl Group {
    fn column<T: Clone>(
        &self,
        column: usize,
        expected: &str,
        plain: impl Fn(&dyn Array) -> Option<Vec<T>>,
    ) -> Result<Vec<T>, String> {
        let array = &*self.columns[&column];
        let values = values::unpacked(array, plain)
            .ok_or_else(|| format!("is of the type {}: expected {expected}", array.data_type()))?;
        // Last: other types may claim any number of rows, for each of which this needs memory.
        let nulls = array.logical_nulls();
        match nulls.and_then(|nulls| nulls.iter().position(|is_there| !is_there)) {
            None => Ok(values),
            Some(place) => {
                let row = self.rows.start + place;
                Err(format!("row {row} has no value: expected one in every row"))
            }
        }
    }
}

#[cfg(test)]
mod tests;
