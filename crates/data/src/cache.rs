//! The cache of objects fetched from servers.

use std::fmt;
use std::path::PathBuf;

/// The cache of objects of remote sources, and the receiver of reports on downloads and waits.
#[derive(Clone, Default)]
pub struct Cache {
    /// The cache directory, with one directory per URL. By default, `unisono-data-cache-` and the user ID, in the system's temporary directory.
    pub folder: Option<PathBuf>,
    /// Receives reports: the size and origin of the next download, the progress of another process that downloads, and data servers that do not
    /// answer. By default, reports go to `tracing`.
    pub report: Option<fn(&str)>,
}

impl Cache {
    /// Reports a download or a wait to [`report`](Self#structfield.report) or, by default, to `tracing`.
    pub fn report(&self, text: &str) {
        match self.report {
            Some(report) => report(text),
            None => tracing::info!("{text}"),
        }
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("folder", &self.folder).finish_non_exhaustive()
    }
}
