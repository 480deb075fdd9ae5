//! Errors of data sets.

use std::error::Error;
use std::io;
use std::path::PathBuf;

/// Why a data set could not be loaded, or a sample could not be made.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The name of the source is unknown.
    #[error(
        "unknown data set `{name}`: expected `digits`, `idx:DIR`, `text:FILES`, `csv:FILES`, `parquet:FILES`, `arrow:FILES`, \
         `tfrecord:FILES_OR_DIR`, `webdataset:FILES_OR_DIR`, `npy:DIR`, `images:DIR`, `cifar:DIR` or \
         `service:HOST:PORT,…`"
    )]
    UnknownSource {
        /// The name as given.
        name: String,
    },
    /// An option is 0.
    #[error("{option} is 0: it must be at least 1")]
    Zero {
        /// The option, as text.
        option: &'static str,
    },
    /// A file could not be read or unpacked.
    #[error("cannot read `{}`: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A file could not be written.
    #[error("cannot write `{}`: {error}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A file of a snapshot is invalid, or a snapshot cannot be made.
    #[error("`{}`: {problem}", path.display())]
    Snapshot {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong and what to do.
        problem: String,
    },
    /// The directory of an IDX data set does not exist.
    #[error("no directory `{}`: expected one that contains files in MNIST format", path.display())]
    NoDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// A file is missing from a directory.
    #[error("no {names} in `{}`: expected there, gzipped (.gz) or not", path.display())]
    NoFile {
        /// The directory.
        path: PathBuf,
        /// The names that were tried.
        names: String,
    },
    /// The magic number of a file is of another format.
    #[error(
        "`{}` is not an IDX file of {what}: its magic number is {found:#010x}, expected {expected:#010x}",
        path.display()
    )]
    Magic {
        /// The file.
        path: PathBuf,
        /// Images or labels.
        what: &'static str,
        /// The magic number read.
        found: u32,
        /// The expected magic number.
        expected: u32,
    },
    /// A header has a size of 0, or one that overflows.
    #[error("`{}` has the shape {shape:?}: expected sizes that are above 0 and fit in memory", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The sizes in the header.
        shape: Vec<u32>,
    },
    /// A file ends early.
    #[error("`{}` is truncated: {found} bytes, expected {expected}; fetch it again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes read, after unpacking.
        found: usize,
        /// Bytes that the header announces, itself included.
        expected: usize,
    },
    /// A file continues after its end.
    #[error("`{}` has trailing bytes: expected it to end after {expected}; fetch it again", path.display())]
    Trailing {
        /// The file.
        path: PathBuf,
        /// Bytes that the header announces, itself included.
        expected: usize,
    },
    /// The numbers of labels and images differ.
    #[error(
        "`{}` has {found} labels for the {expected} images of `{}`: the numbers must be equal",
        path.display(),
        images.display()
    )]
    Count {
        /// The file of labels.
        path: PathBuf,
        /// How many it holds.
        found: usize,
        /// The file of images.
        images: PathBuf,
        /// How many that one holds.
        expected: usize,
    },
    /// Test images and training images differ in size.
    #[error(
        "`{}` has images of {}x{} pixels: expected {}x{}, as in training",
        path.display(), found[0], found[1], expected[0], expected[1]
    )]
    Size {
        /// The file of test images.
        path: PathBuf,
        /// Their height and width.
        found: [usize; 2],
        /// Height and width of the training images.
        expected: [usize; 2],
    },
    /// A label is not a class.
    #[error("`{}` labels sample {sample} as {label}: expected 0 to {highest}", path.display())]
    Label {
        /// The file.
        path: PathBuf,
        /// The sample's index.
        sample: usize,
        /// Its label.
        label: u8,
        /// The highest valid label.
        highest: u8,
    },
    /// A text is not UTF-8.
    #[error("`{}` is not UTF-8 text: no valid character at byte {position}", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Offset of the first invalid byte.
        position: usize,
    },
    /// There are too few samples for training and testing.
    #[error("`{}` is too short: {found} {what}, expected at least {expected}", path.display())]
    TooShort {
        /// The file.
        path: PathBuf,
        /// What is counted.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many are needed.
        expected: usize,
    },
    /// A directory contains no suitable file.
    #[error("`{}` contains no {expected}", path.display())]
    Empty {
        /// The directory.
        path: PathBuf,
        /// What was expected.
        expected: &'static str,
    },
    /// A cell of a table has an unexpected value.
    #[error("`{}`, line {line}, column `{column}`: {problem}", path.display())]
    Cell {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The column, by its name in the header.
        column: String,
        /// What is wrong and what was expected.
        problem: String,
    },
    /// A column of a table is invalid.
    #[error("`{}`, column `{column}`: {problem}", path.display())]
    Column {
        /// The file.
        path: PathBuf,
        /// The column, by its name in the header.
        column: String,
        /// What is wrong and what was expected.
        problem: String,
    },
    /// A line of a table, or its header, is invalid.
    #[error("`{}`, line {line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong and what was expected.
        problem: String,
    },
    /// A record of a file is invalid.
    #[error("`{}`, record {record}: {problem}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The record's index in the file, from 0.
        record: usize,
        /// What is wrong and what was expected.
        problem: String,
    },
    /// An image file, or a directory of images, is invalid.
    #[error("`{}`: {problem}", path.display())]
    Image {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong and what was expected.
        problem: String,
    },
    /// More samples are damaged than may be skipped.
    #[error("{error}; {skipped} damaged samples were skipped before, which is as many as may be")]
    TooManyBad {
        /// How many were skipped.
        skipped: usize,
        /// What is wrong with the next.
        error: Box<DataError>,
    },
    /// A source on a server cannot be had.
    #[error("`{url}`: {problem}")]
    Remote {
        /// Its URL.
        url: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A file is invalid, or there is no room for what it unpacks to.
    #[error("`{}`: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong and what was expected.
        problem: String,
    },
    /// A pattern matches no file.
    #[error("no file matches `{pattern}`: expected {expected}")]
    NoMatch {
        /// The pattern.
        pattern: String,
        /// What was expected.
        expected: String,
    },
    /// An element of a pipeline could not be made.
    #[error("element {element}: {error}")]
    Element {
        /// The element's index at the stage that failed, from 0.
        element: u64,
        /// The error.
        error: Box<DataError>,
    },
    /// A thread for a pipeline could not be started.
    #[error("cannot start a thread for the input pipeline: {error}; allow this user more threads")]
    Thread {
        /// The system's error.
        error: io::Error,
    },
    /// The address of a server is invalid.
    #[error("`{address}` is not the address of a data server: expected HOST:PORT")]
    Address {
        /// The address as given.
        address: String,
    },
    /// The source needs features of this crate that are not compiled in.
    #[error("`{name}` cannot be read: this program was built without `--features {}`", features.join(","))]
    MissingFeatures {
        /// The source as given.
        name: String,
        /// The features.
        features: Vec<&'static str>,
    },
    /// Servers ask for a token, and none was given.
    #[error("the data servers `{servers}` ask for a token: name the file that holds it (--data-token-file)")]
    NoToken {
        /// The servers as given.
        servers: String,
    },
    /// A token is invalid, or not secret.
    #[error("token file `{}`: {problem}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// What is wrong and what was expected.
        problem: String,
    },
    /// A server cannot be used, or cannot serve.
    #[error("data server `{address}`: {problem}")]
    Server {
        /// The address.
        address: String,
        /// What is wrong.
        problem: String,
    },
    /// No server answers.
    #[error("no data server has answered for {seconds} s; {problems}")]
    NoServer {
        /// How long it was waited for one.
        seconds: u64,
        /// Every server, and why it failed last.
        problems: String,
    },
    /// The wait for data servers ended on [request](crate::Stop).
    #[error("stopped while waiting for a data server")]
    Stopped,
    /// A user-defined error.
    #[error(transparent)]
    Other(Box<dyn Error + Send + Sync>),
}

impl DataError {
    /// A user-defined error, or its message.
    pub fn other(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Other(error.into())
    }

    /// Whether a sample is damaged, in contrast to a file that cannot be read and the like.
    pub(super) fn is_damage(&self) -> bool {
        matches!(self, Self::Image { .. } | Self::Record { .. } | Self::File { .. } | Self::Snapshot { .. })
    }

    /// Adds the index of a pipeline's element to an error.
    pub(super) fn in_element(self, element: u64) -> Self {
        Self::Element { element, error: Box::new(self) }
    }
}
