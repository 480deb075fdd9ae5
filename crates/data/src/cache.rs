//! The store of objects fetched from servers.

use std::fmt;
use std::path::PathBuf;

/// The store of objects of remote sources, and the receiver of reports on downloads and waits.
#[derive(Clone, Default)]
pub struct Cache {
    /// The folder, with one folder in it for each URL; by default `unisono-data-cache-` and the user's number, in the system's
    /// temporary directory.
    pub folder: Option<PathBuf>,
    /// Is told how much is about to be fetched and from where, how far another process is that is waited for, and which data servers do
    /// not answer; by default, `tracing` is.
    pub tell: Option<fn(&str)>,
}

impl Cache {
    /// Reports a download or a wait to [`tell`](Self#structfield.tell), or else to `tracing`.
    pub fn tell(&self, text: &str) {
        match self.tell {
            Some(tell) => tell(text),
            None => tracing::info!("{text}"),
        }
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("folder", &self.folder).finish_non_exhaustive()
    }
}
