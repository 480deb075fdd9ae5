//! Waits for servers: what is awaited is told, and a request to stop ends them.

use std::future::Future;
use std::pin::pin;
use std::time::{Duration, Instant};

use tokio::time::timeout;

use unisono_data::{Cache, DataError, Options, Stop};

/// How long a wait takes before it is told.
const SILENT: Duration = Duration::from_secs(1);
/// How often a wait checks whether it is to stop.
const POLL: Duration = Duration::from_millis(50);

/// Who is told of a wait, and what ends it.
#[derive(Debug, Clone, Default)]
pub(super) struct Waiting {
    cache: Cache,
    stop: Stop,
}

impl Waiting {
    pub(super) fn new(options: &Options) -> Self {
        Self { cache: options.cache.clone(), stop: options.stop.clone() }
    }

    pub(super) fn tell(&self, text: &str) {
        self.cache.tell(text);
    }

    /// Waits for a future. Tells once what is `awaited`.
    ///
    /// # Errors
    /// That of the future; [`DataError::Stopped`] on a request to stop.
    pub(super) async fn until<T>(
        &self,
        future: impl Future<Output = Result<T, DataError>>,
        awaited: impl Fn() -> String,
    ) -> Result<T, DataError> {
        let (mut future, began, mut is_told) = (pin!(future), Instant::now(), false);
        loop {
            if let Ok(done) = timeout(POLL, future.as_mut()).await {
                return done;
            }
            if self.stop.is_asked() {
                return Err(DataError::Stopped);
            }
            if !is_told && began.elapsed() > SILENT {
                is_told = true;
                self.tell(&awaited());
            }
        }
    }
}
