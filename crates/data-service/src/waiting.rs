//! Waits for servers, which are reported, and end on a request to stop.

use std::future::Future;
use std::pin::pin;
use std::time::{Duration, Instant};

use tokio::time::timeout;

use unisono_data::{DataError, Options};

/// The time after which a wait is reported.
const SILENT: Duration = Duration::from_secs(1);
/// The interval at which a wait polls for a request to stop.
const POLL: Duration = Duration::from_millis(50);

/// Waits for a future. Reports once what is `awaited`, and returns [`DataError::Stopped`] on a request to stop.
pub(super) async fn until<T>(
    options: &Options,
    future: impl Future<Output = Result<T, DataError>>,
    awaited: impl Fn() -> String,
) -> Result<T, DataError> {
    let (mut future, began, mut is_told) = (pin!(future), Instant::now(), false);
    loop {
        if let Ok(done) = timeout(POLL, future.as_mut()).await {
            return done;
        }
        if options.stop.is_asked() {
            return Err(DataError::Stopped);
        }
        if !is_told && began.elapsed() > SILENT {
            is_told = true;
            options.cache.report(&awaited());
        }
    }
}
