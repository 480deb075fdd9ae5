//! TensorBoard curves: a file of events, each with some named numbers at a step.
//!
//! An event is a Protocol Buffers message in the frame of TensorFlow's records. The messages here contain only the fields that curves need. Field
//! numbers are those of TensorFlow's `event.proto` and `summary.proto`.

use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use prost::Message;

use unisono_data::framing;

/// The version in the first event of a file. Readers support [`SessionLog`] from this version on.
const VERSION: &str = "brain.Event:2";

/// A file of curves for TensorBoard. One rank writes it, because its numbers are identical on all ranks, or means over them.
///
/// A resumed run opens another file in the same directory, and TensorBoard reads them together.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use unisono_train::tensorboard::EventFile;
///
/// # let directory = tempfile::tempdir()?;
/// # let directory = directory.path();
/// let mut events = EventFile::create(directory)?;
/// events.scalars(100, &[("loss/train", 0.25)])?;
/// events.scalars(200, &[("loss/train", 0.125), ("loss/test", 0.25)])?;
/// events.flush()?;
/// # Ok(())
/// # }
/// ```
///
/// # Dropping
/// Dropping writes buffered data and ignores errors. Call [`flush`](Self::flush) first to detect them.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: BufWriter<File>,
}

impl EventFile {
    /// Creates a new file in `directory`, and the directory if it is missing.
    ///
    /// The name is `events.out.tfevents.<seconds since 1970>.<host>.<process>.<n>`, because TensorBoard reads the files of a directory in the order
    /// of their names. `n` is 0, or higher if this process opens several per second.
    ///
    /// # Errors
    /// If the directory cannot be created or the file cannot be written. The error names the path.
    pub fn create(directory: &Path) -> io::Result<Self> {
        fs::create_dir_all(directory).map_err(|error| naming("make", directory, &error))?;
        let (path, file) = new_file(directory)?;
        let mut events = Self { path, file: BufWriter::new(file) };
        events.write(0, Event { file_version: Some(VERSION.to_owned()), ..Event::default() })?;
        Ok(events)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Records that a run resumes from `step`. TensorBoard discards the points of earlier files at this step and later ones, which the resumed run
    /// produces again.
    ///
    /// # Errors
    /// If the file cannot be written. The error names the file.
    ///
    /// # Panics
    /// As [`scalars`](Self::scalars).
    pub fn resume(&mut self, step: u64) -> io::Result<()> {
        let session_log = Some(SessionLog { status: SessionLog::START });
        self.write(step, Event { session_log, ..Event::default() })
    }

    /// Adds a point at `step` to one or several curves. `scalars` are tags and values, which are stored as `f32`.
    ///
    /// TensorBoard groups curves by the part of their tags before the first `/`.
    ///
    /// # Errors
    /// If the file cannot be written. The error names the file.
    ///
    /// # Panics
    /// If the step is above 2^63 - 1, which the format does not support.
    pub fn scalars(&mut self, step: u64, scalars: &[(impl AsRef<str>, f64)]) -> io::Result<()> {
        let value = |(tag, value): &(_, f64)| {
            let tag: &str = AsRef::as_ref(tag);
            Value { tag: tag.to_owned(), simple_value: Some(*value as f32) }
        };
        let summary = Some(Summary { values: scalars.iter().map(value).collect() });
        self.write(step, Event { summary, ..Event::default() })
    }

    /// Writes buffered data, so that TensorBoard can read it.
    ///
    /// # Errors
    /// If the file cannot be written. The error names the file.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.flush().map_err(|error| naming("write", &self.path, &error))
    }

    fn write(&mut self, step: u64, event: Event) -> io::Result<()> {
        let step = i64::try_from(step)
            .unwrap_or_else(|_| panic!("step {step} is above {}, the last that an event can have", i64::MAX));
        // A clock before 1970 does not end a run. Its curves start at time 0.
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let event = Event { wall_time_s: time.as_secs_f64(), step, ..event };
        framing::write(&mut self.file, &event.encode_to_vec())
            .map_err(|error| naming("write", &self.path, &error))
    }
}

fn new_file(directory: &Path) -> io::Result<(PathBuf, File)> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let host = unisono::internals::host();
    let stem = format!("events.out.tfevents.{:010}.{host}.{}", now.as_secs(), std::process::id());
    for n in 0_u32.. {
        let path = directory.join(format!("{stem}.{n}"));
        match File::create_new(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(naming("make", &path, &error)),
            Ok(file) => return Ok((path, file)),
        }
    }
    unreachable!("nobody opens 2^32 files in a second")
}

fn naming(verb: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {verb} `{}`: {error}", path.display()))
}

/// TensorFlow's message `Event`, with one of its optional fields.
#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time_s: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
    #[prost(message, optional, tag = "7")]
    session_log: Option<SessionLog>,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    values: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    // The field is optional in the format, so it is written even if it is 0. A plain field would be omitted.
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

#[derive(Clone, PartialEq, Message)]
struct SessionLog {
    #[prost(int32, tag = "1")]
    status: i32,
}

impl SessionLog {
    const START: i32 = 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the events of a file, and checks their frames.
    fn read(path: &Path) -> Vec<Event> {
        let file = fs::read(path).unwrap();
        let mut rest = &file[..];
        let mut events = Vec::new();
        while let Some((&header, behind)) = rest.split_first_chunk() {
            let length = framing::length(header).expect("the header's checksum is right") as usize;
            let (record, behind) = behind.split_at(length);
            let (sum, behind) = behind.split_first_chunk().expect("a checksum behind the record");
            assert_eq!(u32::from_le_bytes(*sum), framing::checksum(record));
            events.push(Event::decode(record).unwrap());
            rest = behind;
        }
        assert!(rest.is_empty(), "{} bytes behind the last event", rest.len());
        events
    }

    #[test]
    fn events_round_trip_through_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let mut events = EventFile::create(&directory.path().join("of/runs")).unwrap();
        let path = events.path().to_owned();
        events.resume(7).unwrap();
        events.scalars(8, &[("loss", 0.0)]).unwrap();
        events.scalars(9, &[("loss", f64::NAN), ("rate", 0.1)]).unwrap();
        drop(events);

        let read = read(&path);
        assert_eq!(read.iter().map(|event| event.step).collect::<Vec<_>>(), [0, 7, 8, 9]);
        assert!(read.iter().all(|event| event.wall_time_s > 1.7e9), "seconds since 1970");
        let Event { file_version, summary, session_log, .. } = &read[0];
        assert_eq!((file_version.as_deref(), summary, session_log), (Some("brain.Event:2"), &None, &None));
        let Event { file_version, summary, session_log, .. } = &read[1];
        assert_eq!((file_version, summary, session_log), (&None, &None, &Some(SessionLog { status: 1 })));
        let values = |event: &Event| match event {
            Event { file_version: None, summary: Some(summary), session_log: None, .. } => {
                summary.values.clone()
            }
            other => panic!("{other:?} is no summary"),
        };
        let value = |value: &Value| match value.simple_value {
            Some(number) => (value.tag.clone(), number),
            None => panic!("{} has no value", value.tag),
        };
        assert_eq!(values(&read[2]).iter().map(value).collect::<Vec<_>>(), [("loss".to_owned(), 0.0)]);
        let [loss, rate] = &values(&read[3])[..] else { panic!("two values") };
        assert!(value(loss).1.is_nan());
        assert_eq!(value(rate), ("rate".to_owned(), 0.1));
    }

    #[test]
    fn flushed_events_can_be_read_while_the_file_is_open() {
        let directory = tempfile::tempdir().unwrap();
        let mut events = EventFile::create(directory.path()).unwrap();
        events.scalars(1, &[("loss", 2.0)]).unwrap();
        events.flush().unwrap();
        assert_eq!(read(events.path()).len(), 2);
    }

    #[test]
    fn immediately_resumed_run_writes_to_a_separate_file() {
        let directory = tempfile::tempdir().unwrap();
        let files: Vec<_> = (0..3).map(|_| EventFile::create(directory.path()).unwrap()).collect();
        assert!(files.windows(2).all(|pair| pair[0].path() < pair[1].path()), "{files:?}");
    }

    #[test]
    fn write_error_names_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        let message = EventFile::create(&file.join("runs")).unwrap_err().to_string();
        assert!(message.starts_with("cannot make `"), "{message}");
        assert!(message.contains("file/runs"), "{message}");
        let error = naming("write", &file, &ErrorKind::StorageFull.into());
        let (message, place) = (crate::TrainError::Log { error }.to_string(), file.display());
        assert!(message.starts_with(&format!("cannot write `{place}`: ")), "{message}");
        assert!(
            message.ends_with("; its disk is full: free space on it, or choose another directory"),
            "{message}"
        );
    }

    #[test]
    #[should_panic(expected = "step 9223372036854775808 is above")]
    fn step_above_the_maximum_panics() {
        let directory = tempfile::tempdir().unwrap();
        let mut events = EventFile::create(directory.path()).unwrap();
        let _ = events.scalars(1 << 63, &[("loss", 0.0)]);
    }
}
