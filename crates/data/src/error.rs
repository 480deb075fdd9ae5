//! Errors of data sets.

use std::error::Error;
use std::io;
use std::iter;
use std::path::{Path, PathBuf};

/// The reason why a data set could not be loaded, or a sample could not be made.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file could not be read.
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
    /// A file or a directory is missing, invalid or damaged.
    #[error("`{}`{place}: {problem}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The location in the file, such as `, record 3`; empty for the whole file.
        place: String,
        /// The problem, and the expected form.
        problem: String,
    },
    /// An element of a pipeline could not be made.
    #[error("element {element}: {error}")]
    Element {
        /// The element's index at the stage that failed, from 0.
        element: u64,
        /// The error.
        error: Box<DataError>,
    },
    /// A thread could not be started.
    #[error("cannot start a thread for the input pipeline: {error}; allow this user more threads")]
    Thread {
        /// The system's error.
        error: io::Error,
    },
    /// A server of batches cannot be used, or cannot serve.
    #[error("data server `{address}`: {problem}")]
    Server {
        /// The address.
        address: String,
        /// The problem.
        problem: String,
    },
    /// The wait for data ended on [request](crate::Stop).
    #[error("stopped while waiting for data")]
    Stopped,
    /// An invalid option, or a user-defined error.
    #[error(transparent)]
    Other(Box<dyn Error + Send + Sync>),
}

impl DataError {
    /// Returns a user-defined error, or its message.
    pub fn other(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Other(error.into())
    }

    pub(crate) fn read(path: &Path) -> impl Fn(io::Error) -> Self + Copy {
        move |error| Self::Read { path: path.into(), error }
    }

    pub(crate) fn write(path: &Path) -> impl Fn(io::Error) -> Self + Copy {
        move |error| Self::Write { path: path.into(), error }
    }

    pub(crate) fn file(path: impl Into<PathBuf>, problem: impl Into<String>) -> Self {
        Self::File { path: path.into(), place: String::new(), problem: problem.into() }
    }

    pub(crate) fn record(path: &Path, record: usize, problem: impl Into<String>) -> Self {
        Self::File { path: path.into(), place: format!(", record {record}"), problem: problem.into() }
    }

    pub(crate) fn line(path: &Path, line: u64, problem: impl Into<String>) -> Self {
        Self::File { path: path.into(), place: format!(", line {line}"), problem: problem.into() }
    }

    pub(crate) fn column(path: &Path, column: &str, problem: impl Into<String>) -> Self {
        Self::File { path: path.into(), place: format!(", column `{column}`"), problem: problem.into() }
    }

    /// Returns the error for a file of labels whose number differs from the number of images.
    pub(crate) fn labels(path: &Path, found: usize, images: &Path, expected: usize) -> Self {
        let images = images.display();
        let problem =
            format!("has {found} labels for the {expected} images of `{images}`: the numbers must be equal");
        Self::file(path, problem)
    }

    pub(crate) fn zero(option: &str) -> Self {
        Self::other(format!("{option} is 0: it must be at least 1"))
    }

    pub(crate) fn too_short(path: &Path, what: &str, found: usize, expected: usize) -> Self {
        Self::file(path, format!("is too short: {found} {what}, expected at least {expected}"))
    }

    /// Returns whether a sample is damaged, in contrast to, for example, an unreadable file.
    pub(super) fn is_damage(&self) -> bool {
        matches!(self, Self::File { .. })
    }

    /// Returns the error without the indices of elements, for users who do not know the stages of the pipeline.
    #[must_use]
    pub fn without_element(self) -> Self {
        match self {
            Self::Element { error, .. } => error.without_element(),
            error => error,
        }
    }

    pub(super) fn in_element(self, element: u64) -> Self {
        Self::Element { element, error: Box::new(self) }
    }
}

/// Formats an error with its causes. Leaves out causes that add no information.
#[doc(hidden)]
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    for cause in iter::successors(error.source(), |cause| (**cause).source()) {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
    }
    text
}
