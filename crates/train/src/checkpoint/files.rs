//! Reads and writes the files of a checkpoint, with their checksums.
//!
//! Tensors are stored in the safetensors format: the size of a header (8 bytes, little-endian), the header in JSON, the values. Values are written
//! and read in blocks, so that a checkpoint is in memory only once.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::{CheckpointError, Tensor};

/// The number of values that are converted and checksummed at a time, few enough to stay in the cache.
const PIECE: usize = 16 << 10;
/// The maximum size of a header or a state, a hundred times a realistic one. Larger ones are not read.
pub(super) const MOST_TEXT_BYTES: u64 = 100 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sum {
    bytes: u64,
    /// XXH3 of all bytes, in 16 hexadecimal digits.
    xxh3: String,
}

/// A file whose bytes are counted and checksummed.
struct Summing {
    file: File,
    bytes: u64,
    hash: Xxh3,
}

impl Summing {
    fn new(file: File) -> Self {
        Self { file, bytes: 0, hash: Xxh3::new() }
    }

    fn count(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.hash.update(bytes);
    }

    fn sum(&self) -> Sum {
        Sum { bytes: self.bytes, xxh3: format!("{:016x}", self.hash.digest()) }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.count(bytes);
        Ok(())
    }

    fn take(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact(bytes)?;
        self.count(bytes);
        Ok(())
    }
}

/// Writes tensors of this step to a new file, and syncs it to disk.
pub(super) fn write_tensors(path: &Path, tensors: &[Tensor], step: u64) -> Result<Sum, CheckpointError> {
    let mut end = 0;
    let describe = |tensor: &Tensor| {
        let start = end;
        end += size_of_val(&tensor.values[..]);
        let info = TensorInfo { dtype: Dtype::F32, shape: tensor.shape.clone(), data_offsets: (start, end) };
        (tensor.name.clone(), info)
    };
    let metadata = Metadata::new(None, tensors.iter().map(describe).collect());
    let metadata = metadata.expect("the tensors were checked and are contiguous");
    let mut header = serde_json::to_vec(&metadata).expect("names and numbers are JSON");
    header.resize(header.len().next_multiple_of(8), b' ');
    let write = || {
        assert!(header.len() as u64 <= MOST_TEXT_BYTES, "{} tensors are too many", tensors.len());
        let mut file = Summing::new(File::create_new(path)?);
        file.put(&(header.len() as u64).to_le_bytes())?;
        file.put(&header)?;
        let mut bytes = vec![[0; size_of::<f32>()]; PIECE];
        let pieces =
            tensors.iter().flat_map(|tensor| tensor.values.chunks(PIECE).map(move |piece| (tensor, piece)));
        for (tensor, piece) in pieces {
            let (bytes, mut is_finite) = (&mut bytes[..piece.len()], true);
            for (bytes, value) in bytes.iter_mut().zip(piece) {
                *bytes = value.to_le_bytes();
                is_finite &= value.is_finite();
            }
            if !is_finite {
                return Ok(Err(tensor));
            }
            file.put(bytes.as_flattened())?;
        }
        file.file.sync_all()?;
        Ok(Ok(file.sum()))
    };
    write().map_err(CheckpointError::write(path))?.map_err(|Tensor { name, values, .. }| {
        let found = values.iter().find(|value| !value.is_finite()).copied().unwrap_or(f32::NAN);
        CheckpointError::NotFinite { tensor: name.clone(), found, step }
    })
}

/// Reads a file of [`write_tensors`], in file order, and verifies its checksum.
pub(super) fn read_tensors(path: &Path, expected: &Sum) -> Result<Vec<Tensor>, CheckpointError> {
    let broken = |why: String| CheckpointError::broken(path, why);
    // The file may still be too short, if it changes after the check.
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => broken("it is truncated".into()),
        _ => CheckpointError::Read { path: path.into(), error },
    };
    let (file, bytes) = open(path)?;
    if bytes != expected.bytes {
        return Err(broken(format!("it has {bytes} bytes, not {}", expected.bytes)));
    }
    let mut file = Summing::new(file);
    let mut size = [0; 8];
    file.take(&mut size).map_err(unreadable)?;
    let size = u64::from_le_bytes(size);
    if size > MOST_TEXT_BYTES.min(bytes - 8) {
        return Err(broken(format!("its header claims a size of {size} bytes")));
    }
    let mut header = vec![0; size as usize];
    file.take(&mut header).map_err(unreadable)?;
    // Checks that the tensors are contiguous and match their shapes.
    let metadata: Metadata =
        serde_json::from_slice(&header).map_err(|error| broken(format!("its header is invalid: {error}")))?;
    if metadata.data_len() as u64 != bytes - 8 - size {
        return Err(broken(format!(
            "its tensors have {} bytes, not {}",
            metadata.data_len(),
            bytes - 8 - size
        )));
    }
    let mut infos: Vec<_> = metadata.tensors().into_iter().collect();
    infos.sort_by(|(name, info), (other_name, other)| {
        info.data_offsets.cmp(&other.data_offsets).then_with(|| name.cmp(other_name))
    });
    let mut tensors = Vec::with_capacity(infos.len());
    for (name, TensorInfo { dtype, shape, .. }) in infos {
        if *dtype != Dtype::F32 {
            return Err(broken(format!("`{name}` is of type {dtype}, not F32")));
        }
        let values = read_values(&mut file, shape.iter().product()).map_err(unreadable)?;
        tensors.push(Tensor { name, shape: shape.clone(), values });
    }
    if file.sum() != *expected {
        return Err(broken(format!("its checksum is {}, not {}", file.sum().xxh3, expected.xxh3)));
    }
    Ok(tensors)
}

/// Reads this many values. The caller has checked the file's size, so that a damaged header cannot cause a large allocation.
fn read_values(file: &mut Summing, count: usize) -> io::Result<Vec<f32>> {
    let mut values = Vec::new();
    values.try_reserve_exact(count)?;
    values.resize(count, 0.0_f32);
    for piece in values.chunks_mut(PIECE) {
        file.take(bytemuck::cast_slice_mut(piece))?;
        piece.iter_mut().for_each(|value| *value = f32::from_bits(u32::from_le(value.to_bits())));
    }
    Ok(values)
}

/// Writes JSON to a new file, and syncs it to disk, in a JSON frame that holds its checksum.
pub(super) fn write_framed(path: &Path, content: &str) -> Result<(), CheckpointError> {
    let write = || {
        let mut file = File::create_new(path)?;
        file.write_all(frame(content).as_bytes())?;
        file.sync_all()
    };
    write().map_err(CheckpointError::write(path))
}

/// Reads a file of [`write_framed`], and verifies its checksum.
pub(super) fn read_framed(path: &Path) -> Result<String, CheckpointError> {
    let broken = |why: String| CheckpointError::broken(path, why);
    let (file, bytes) = open(path)?;
    if bytes > MOST_TEXT_BYTES {
        return Err(broken(format!("it has {bytes} bytes, more than {MOST_TEXT_BYTES}")));
    }
    let mut text = Vec::new();
    file.take(MOST_TEXT_BYTES).read_to_end(&mut text).map_err(CheckpointError::read(path))?;
    let text = String::from_utf8(text).map_err(|_| broken("it is not UTF-8".into()))?;
    if text.len() < frame("").len() {
        return Err(broken(format!("it has only {} bytes", text.len())));
    }
    let content = text.split_once("\"content\": ").and_then(|(_, rest)| rest.strip_suffix("\n}\n"));
    match content.filter(|content| frame(content) == text) {
        Some(content) => Ok(content.to_owned()),
        None => Err(broken("its checksum is wrong".into())),
    }
}

pub(super) fn fits(content: &str) -> bool {
    frame(content).len() as u64 <= MOST_TEXT_BYTES
}

fn frame(content: &str) -> String {
    let xxh3 = xxh3_64(content.as_bytes());
    format!("{{\n\"xxh3_of_content\": \"{xxh3:016x}\",\n\"content\": {content}\n}}\n")
}

fn open(path: &Path) -> Result<(File, u64), CheckpointError> {
    let unreadable = || CheckpointError::read(path);
    // Checks before opening: opening a pipe would wait for a writer.
    if !fs::metadata(path).map_err(unreadable())?.is_file() {
        return Err(CheckpointError::broken(path, "it is not a file"));
    }
    let file = File::open(path).map_err(unreadable())?;
    let bytes = file.metadata().map_err(unreadable())?.len();
    Ok((file, bytes))
}
