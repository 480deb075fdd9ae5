//! The parts of a URL, connections to buckets and servers, and descriptions of their errors.

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientConfigKey, ClientOptions, Error, ObjectStore, RetryConfig};
use url::Url;

use super::Wanted;
use crate::error::with_causes;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// A bucket of S3, or of a compatible store.
    Bucket(String),
    /// A server's address, as `https://host:port/`.
    Server(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) place: Place,
    /// The path of an object, or of a folder of objects.
    pub(super) path: Path,
    /// The kind of object, as far as the URL determines it.
    pub(super) wanted: Wanted,
}

impl Address {
    pub(super) fn read(url: &str, wanted: Wanted) -> Result<Self, String> {
        match url.split_once("://") {
            Some(("s3", rest)) => Self::in_bucket(rest, wanted),
            Some(("http" | "https", _)) => Self::on_server(url, wanted),
            _ => {
                Err("is of an unknown kind: expected s3://BUCKET/FOLDER_OR_OBJECT or https://HOST/OBJECT"
                    .into())
            }
        }
    }

    fn in_bucket(rest: &str, wanted: Wanted) -> Result<Self, String> {
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err("names no bucket: expected s3://BUCKET/FOLDER_OR_OBJECT".into());
        }
        let is_folder = key.is_empty() || key.ends_with('/');
        if is_folder && wanted == Wanted::File {
            return Err("names a folder: expected an object, for this format is read from one file".into());
        }
        let path = Path::parse(key).map_err(|error| format!("has no valid path: {error}"))?;
        let wanted = if is_folder { Wanted::Folder } else { wanted };
        Ok(Self { place: Place::Bucket(bucket.into()), path, wanted })
    }

    fn on_server(url: &str, wanted: Wanted) -> Result<Self, String> {
        if wanted == Wanted::Folder {
            return Err(
                "cannot be listed: this format is a folder of files, which only s3://BUCKET/FOLDER can be"
                    .into(),
            );
        }
        let url = Url::parse(url).map_err(|error| format!("is no valid URL: {error}"))?;
        // Credentials would appear in messages and in the cache.
        if !url.username().is_empty() || url.password().is_some() {
            return Err(
                "has a user or a password in it: expected https://HOST/OBJECT, readable without".into()
            );
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err("has a `?` or a `#`: expected https://HOST/OBJECT, readable without".into());
        }
        let path = Path::from_url_path(url.path()).map_err(|error| format!("has no valid path: {error}"))?;
        if path.filename().is_none() || url.path().ends_with('/') {
            return Err("names no object: expected https://HOST/OBJECT".into());
        }
        let origin = url.join("/").map_err(|error| format!("is no valid URL: {error}"))?;
        Ok(Self { place: Place::Server(origin.into()), path, wanted: Wanted::File })
    }
}

/// The timeouts of a connection, of a read, and of a whole object, which may take as long as it needs.
const SILENCE: [(ClientConfigKey, &str); 3] = [
    (ClientConfigKey::ConnectTimeout, "10 seconds"),
    (ClientConfigKey::ReadTimeout, "30 seconds"),
    (ClientConfigKey::Timeout, "7 days"),
];

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_objects_and_folders() {
        let read = |url, wanted| Address::read(url, wanted).unwrap();
        let of_bucket =
            |path, wanted| Address { place: Place::Bucket("b".into()), path: Path::from(path), wanted };
        assert_eq!(read("s3://b/a/c", Wanted::Either), of_bucket("a/c", Wanted::Either));
        assert_eq!(read("s3://b/a/c/", Wanted::Either), of_bucket("a/c", Wanted::Folder));
        assert_eq!(read("s3://b", Wanted::Folder), of_bucket("", Wanted::Folder));
        let place = Place::Server("https://host:8443/".into());
        let expected = Address { place, path: Path::from("some dir/x.csv"), wanted: Wanted::File };
        assert_eq!(read("https://host:8443/some%20dir/x.csv", Wanted::Either), expected);
    }

    #[test]
    fn invalid_urls_are_refused_with_the_reason() {
        for (url, wanted, problem) in [
            ("gs://b/a", Wanted::Either, "unknown kind"),
            ("s3:///a", Wanted::Either, "names no bucket"),
            ("s3://b/a/", Wanted::File, "names a folder"),
            ("s3://b/a//c", Wanted::Either, "no valid path"),
            ("s3://b/../c", Wanted::Either, "no valid path"),
            ("https://host/a", Wanted::Folder, "cannot be listed"),
            ("https://me:secret@host/a", Wanted::File, "a password"),
            ("https://host/a?token=1", Wanted::File, "has a `?`"),
            ("https://host/a/", Wanted::File, "names no object"),
            ("https://host", Wanted::File, "names no object"),
            ("https://", Wanted::File, "no valid URL"),
        ] {
            let message = Address::read(url, wanted).unwrap_err();
            assert!(message.contains(problem), "{url}: {message}");
        }
    }
}
