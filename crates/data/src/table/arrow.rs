//! Reads Arrow files, a record batch at a time.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_ipc::reader::{read_dictionary, read_record_batch};
use arrow_schema::SchemaRef;

use self::messages::{Message, Messages};
use super::parts::{self, Filling};
use crate::error::DataError;

mod messages;

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
        let (columns, mut before) = (table.used(), 0);
        while let Some(message) = self.messages.next()? {
            let batch = self.decoded(message, &columns).map_err(|problem| {
                self.refused(format!("cannot be decoded from row {before} on: {problem}; write it again"))
            })?;
            let Some(batch) = batch else { continue };
            table.push_batch((self.path, &self.header), before, &batch)?;
            before += batch.num_rows();
        }
        Ok(())
    }
}

impl Part<'_> {
    /// Returns these columns of the rows in a message; `None` if it is a dictionary, to which later rows
    /// refer.
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

#[cfg(test)]
mod tests;
