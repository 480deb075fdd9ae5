//! Reads Arrow files, a record batch at a time.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_ipc::reader::{read_dictionary, read_record_batch};
use arrow_schema::SchemaRef;

use self::messages::{Message, Messages};
use super::Filling;
use super::batches::undecodable;
use crate::error::DataError;

mod messages;

pub(super) fn read(path: &Path, table: &mut Filling) -> Result<(), DataError> {
    let (schema, mut messages) = Messages::open(path)?;
    let used = table.begin_batches(path, &schema)?;
    let mut batches = Batches { schema: Arc::new(schema), dictionaries: HashMap::new() };
    let mut before = 0;
    while let Some(message) = messages.next()? {
        let batch = batches.decoded(message, &used);
        if let Some(batch) = batch.map_err(|problem| undecodable(path, before, &problem))? {
            table.push_batch(path, before, &used, &batch)?;
            before += batch.num_rows();
        }
    }
    Ok(())
}

/// The state that messages refer to.
struct Batches {
    schema: SchemaRef,
    /// The dictionaries read so far, by number.
    dictionaries: HashMap<i64, ArrayRef>,
}

impl Batches {
    /// Returns these columns of the rows in a message; `None` for a dictionary, to which later rows refer.
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
