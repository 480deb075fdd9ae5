//! Reads Arrow files, a record batch at a time.
//!
//! Their messages are one after the other in the stream format, and at the offsets in the footer in the file format. Sizes in a damaged file are
//! validated against the file before anything is allocated for them.

use std::collections::HashMap;
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::vec::IntoIter;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_ipc::convert::{MessageBuffer, try_fb_to_schema};
use arrow_ipc::reader::{read_dictionary, read_footer_length, read_record_batch};
use arrow_ipc::{CompressionType, root_as_footer};
use arrow_schema::{Schema, SchemaRef};

use super::Filling;
use super::batches::undecodable;
use crate::byte_file::ByteFile;
use crate::error::DataError;

/// The first and last bytes of a file in the file format.
const MAGIC: &[u8] = b"ARROW1";
/// Bytes at the end of such a file: the length of the footer before them, and the magic.
const ENDING: usize = 10;
/// The maximum number of bytes to which one byte of LZ4 can expand.
const MOST_FROM_A_BYTE: i64 = 255;

pub(super) fn read(path: &Path, table: &mut Filling) -> Result<(), DataError> {
    let (schema, mut messages) = Messages::open(path)?;
    let used = table.begin_batches(path, &schema)?;
    let (schema, mut dictionaries, mut before) = (Arc::new(schema), HashMap::new(), 0);
    while let Some(message) = messages.next()? {
        let batch = decoded(message, &used, &schema, &mut dictionaries);
        if let Some(batch) = batch.map_err(|problem| undecodable(path, before, &problem))? {
            table.push_batch(path, before, &used, &batch)?;
            before += batch.num_rows();
        }
    }
    Ok(())
}

/// Returns these columns of the rows in a message; `None` for a dictionary, to which later rows refer, and which is added by its number.
fn decoded(
    message: Message,
    columns: &[usize],
    schema: &SchemaRef,
    dictionaries: &mut HashMap<i64, ArrayRef>,
) -> Result<Option<RecordBatch>, String> {
    message.check()?;
    let Message { header, body } = message;
    let (header, body) = (header.as_ref(), body.into());
    let version = header.version();
    let decoded = if let Some(batch) = header.header_as_record_batch() {
        read_record_batch(&body, batch, Arc::clone(schema), dictionaries, Some(columns), &version).map(Some)
    } else if let Some(batch) = header.header_as_dictionary_batch() {
        read_dictionary(&body, batch, schema, dictionaries, &version).map(|()| None)
    } else {
        let kind = header.header_type();
        return Err(format!("there is a message of the kind {kind:?}: expected rows or a dictionary"));
    };
    decoded.map_err(|error| error.to_string())
}

/// A message: its header, and the body that the header describes.
struct Message {
    header: MessageBuffer,
    body: Vec<u8>,
}

enum Next {
    /// The next message starts at this offset, unless the file ends there.
    Stream(u64),
    /// The next message starts at the first of these offsets, if any is left.
    Footer(IntoIter<i64>),
}

struct Messages {
    file: ByteFile,
    next: Next,
}

impl Messages {
    fn open(path: &Path) -> Result<(Schema, Self), DataError> {
        let mut messages = Self { file: ByteFile::open(path.into())?, next: Next::Stream(0) };
        let schema = match messages.file.start()?.starts_with(MAGIC) {
            true => messages.read_footer()?,
            // The first message of a stream.
            false => {
                let first = messages.next()?;
                let schema = first.as_ref().and_then(|message| message.header.as_ref().header_as_schema());
                converted(schema).map_err(|problem| messages.refused(problem))?
            }
        };
        Ok((schema, messages))
    }

    fn next(&mut self) -> Result<Option<Message>, DataError> {
        let start = match &mut self.next {
            Next::Stream(at) if *at == self.file.length => return Ok(None),
            Next::Stream(at) => *at,
            Next::Footer(places) => match places.next() {
                Some(place) => place.try_into().unwrap_or(u64::MAX),
                None => return Ok(None),
            },
        };
        let (message, end) = self.message(start)?;
        if message.is_none() && end != self.file.length {
            let length = self.file.length;
            return Err(self.refused(format!("its messages end at byte {end} of {length}")));
        }
        if let Next::Stream(at) = &mut self.next {
            *at = end;
        }
        Ok(message)
    }

    /// Reads the footer, which has the schema and the offsets of the other messages, dictionaries first.
    fn read_footer(&mut self) -> Result<Schema, DataError> {
        let refused = |problem: &dyn Display| self.refused(format!("its footer: {problem}"));
        let end = self.file.length.saturating_sub(ENDING as u64);
        let ending = self.bytes(end, ENDING as i64)?.try_into().expect("so many were asked for");
        let length = read_footer_length(ending).map_err(|error| refused(&error))? as u64;
        let start =
            end.checked_sub(length).ok_or_else(|| refused(&format!("has {length} bytes of {end}")))?;
        let footer = self.bytes(start, length as i64)?;
        let footer = root_as_footer(&footer).map_err(|error| refused(&error))?;
        let blocks = [footer.dictionaries(), footer.recordBatches()].into_iter().flatten().flatten();
        let places: Vec<_> = blocks.map(arrow_ipc::Block::offset).collect();
        let schema = converted(footer.schema()).map_err(|problem| refused(&problem))?;
        self.next = Next::Footer(places.into_iter());
        Ok(schema)
    }

    /// Returns the message that starts at an offset, or `None` at the end marker of a stream. Also returns the offset after it.
    fn message(&self, start: u64) -> Result<(Option<Message>, u64), DataError> {
        let number = |at| {
            let bytes = self.bytes(at, 4)?.try_into().expect("so many were asked for");
            Ok::<_, DataError>(i32::from_le_bytes(bytes))
        };
        // Before Arrow 0.15, there was no marker before the length.
        let (length, start) = match number(start)? {
            -1 => (number(start + 4)?, start + 8),
            length => (length, start + 4),
        };
        if length == 0 {
            return Ok((None, start));
        }
        let header = self.bytes(start, length.into())?;
        let start = start + header.len() as u64;
        let header = MessageBuffer::try_new(header.into());
        let header = header.map_err(|error| self.refused(error.to_string()))?;
        let body = self.bytes(start, header.as_ref().bodyLength())?;
        let end = start + body.len() as u64;
        Ok((Some(Message { header, body }), end))
    }

    /// Reads this many bytes from an offset, if they are in the file.
    fn bytes(&self, start: u64, length: i64) -> Result<Vec<u8>, DataError> {
        let end = u64::try_from(length).ok().and_then(|length| start.checked_add(length));
        if end.is_none_or(|end| end > self.file.length) {
            let there = self.file.length;
            return Err(self.refused(format!("{length} bytes from byte {start} on are not in its {there}")));
        }
        self.file.read(start, length as usize)
    }

    fn refused(&self, problem: String) -> DataError {
        let problem = format!("is not an Arrow file, or damaged: {problem}");
        DataError::file(&self.file.path, problem)
    }
}

fn converted(schema: Option<arrow_ipc::Schema>) -> Result<Schema, String> {
    let schema = schema.ok_or("expected a schema, which says what its columns are")?;
    if !schema.endianness().equals_to_target_endianness() {
        return Err("its numbers are big-endian: expected little-endian ones".into());
    }
    try_fb_to_schema(schema).map_err(|error| error.to_string())
}

impl Message {
    /// Returns an error for columns that are not in the body, or that claim an impossible decompressed size. Call it before decoding them.
    fn check(&self) -> Result<(), String> {
        let header = self.header.as_ref();
        let of_dictionary = || header.header_as_dictionary_batch().and_then(|dictionary| dictionary.data());
        let Some(batch) = header.header_as_record_batch().or_else(of_dictionary) else { return Ok(()) };
        let counts = batch.nodes().into_iter().flatten().flat_map(|node| [node.length(), node.null_count()]);
        if let Some(count) = counts.chain([batch.length()]).find(|&count| count < 0) {
            return Err(format!("there are {count} values"));
        }
        let is_packed = is_packed(batch)?;
        for buffer in batch.buffers().into_iter().flatten() {
            let (start, length) = (buffer.offset(), buffer.length());
            let place = usize::try_from(start).ok().zip(usize::try_from(length).ok());
            let bytes =
                place.and_then(|(start, length)| self.body.get(start..)?.get(..length)).ok_or_else(|| {
                    let there = self.body.len();
                    format!("{length} bytes from byte {start} on are not in the {there} of a message")
                })?;
            if is_packed {
                check_packed(bytes)?;
            }
        }
        Ok(())
    }
}

fn is_packed(batch: arrow_ipc::RecordBatch) -> Result<bool, String> {
    match batch.compression().map(|compression| compression.codec()) {
        None => Ok(false),
        Some(CompressionType::LZ4_FRAME) => Ok(true),
        Some(other) => Err(format!("it is compressed by {other:?}: expected LZ4, or no compression")),
    }
}

/// Checks the number before compressed bytes: their decompressed size, or -1 for plain bytes.
fn check_packed(bytes: &[u8]) -> Result<(), String> {
    if bytes.is_empty() {
        return Ok(());
    }
    let (claimed, packed) = bytes.split_first_chunk().ok_or("compressed bytes have no length before them")?;
    match i64::from_le_bytes(*claimed) {
        -1 => Ok(()),
        claimed if (0..=packed.len() as i64 * MOST_FROM_A_BYTE).contains(&claimed) => Ok(()),
        claimed => Err(format!("{} compressed bytes claim to be {claimed}", packed.len())),
    }
}

#[cfg(test)]
mod tests;
