//! Connects to buckets and servers, and describes their errors.

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::http::HttpBuilder;
use object_store::{BackoffConfig, ClientConfigKey, ClientOptions, Error, ObjectStore, RetryConfig};

use super::address::Place;
use crate::error::with_causes;

/// The timeouts of a connection, of a read, and of a whole object, which may take as long as it needs.
const SILENCE: [(ClientConfigKey, &str); 3] = [
    (ClientConfigKey::ConnectTimeout, "10 seconds"),
    (ClientConfigKey::ReadTimeout, "30 seconds"),
    (ClientConfigKey::Timeout, "7 days"),
];

/// Returns the retry policy: at most five retries, after pauses that double.
fn retries() -> RetryConfig {
    let backoff = BackoffConfig {
        init_backoff: Duration::from_millis(100),
        max_backoff: Duration::from_secs(10),
        base: 2.0,
    };
    RetryConfig { backoff, max_retries: 5, retry_timeout: Duration::from_secs(60) }
}

/// Connects to the store at a location. Credentials, region and endpoint of a bucket come from the variables `AWS_…`, as `object_store` reads them.
pub(super) fn connect(place: &Place) -> Result<Arc<dyn ObjectStore>, String> {
    // An error means that the program has installed its own provider, which works too.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let connected: Result<Arc<dyn ObjectStore>, Error> = match place {
        Place::Bucket(bucket) => {
            let settings = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retries());
            let silence = SILENCE.map(|(key, limit)| (AmazonS3ConfigKey::Client(key), limit));
            let settings =
                silence.into_iter().fold(settings, |all, (key, limit)| all.with_config(key, limit));
            settings.build().map(|bucket| Arc::new(bucket) as _)
        }
        Place::Server(address) => {
            let is_plain = address.starts_with("http:");
            let options = ClientOptions::new().with_allow_http(is_plain);
            let options = SILENCE.into_iter().fold(options, |all, (key, limit)| all.with_config(key, limit));
            let settings = HttpBuilder::new().with_url(address).with_client_options(options);
            settings.with_retry(retries()).build().map(|server| Arc::new(server) as _)
        }
    };
    connected.map_err(|error| describe(&error))
}

/// Describes the problem and the remedy.
pub(super) fn describe(error: &Error) -> String {
    let text = with_causes(error);
    // A refused list request has no error variant.
    let is_refused = matches!(error, Error::PermissionDenied { .. } | Error::Unauthenticated { .. });
    match error {
        Error::NotFound { .. } => "is not there: check the name".into(),
        Error::Precondition { .. } => changed(),
        _ if is_refused || text.contains("403 Forbidden") => format!(
            "may not be read: {text}; for a bucket, set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true if it \
             is public"
        ),
        _ => format!("cannot be fetched: {text}"),
    }
}

/// Describes an object that differs from its listing.
pub(super) fn changed() -> String {
    "was changed while it was fetched: start again once nothing is written there".into()
}
