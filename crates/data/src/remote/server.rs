//! URLs, connections to their buckets and servers, and descriptions of their errors.

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientConfigKey, ClientOptions, Error, ObjectStore, RetryConfig};
use url::Url;

use super::Wanted;
use crate::error::with_causes;

#[derive(Debug)]
pub(super) struct Address {
    /// A connection to the bucket or to the server.
    pub(super) store: Arc<dyn ObjectStore>,
    /// The path of an object, or of a folder of objects.
    pub(super) path: Path,
    /// The kind of object, as far as the URL determines it.
    pub(super) wanted: Wanted,
}

impl Address {
    /// Reads a URL, and connects to its bucket or server; the error describes the problem. Credentials, region and endpoint of a bucket come from the
    /// variables `AWS_…`, as `object_store` reads them.
    pub(super) fn read(url: &str, wanted: Wanted) -> Result<Self, String> {
        // An error means that the program has installed its own provider, which works too.
        let _ = rustls::crypto::ring::default_provider().install_default();
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
        let settings = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retries());
        let settings = SILENCE
            .into_iter()
            .fold(settings, |all, (key, limit)| all.with_config(AmazonS3ConfigKey::Client(key), limit));
        let store = settings.build().map_err(|error| describe(&error))?;
        Ok(Self { store: Arc::new(store), path, wanted })
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
        let options = ClientOptions::new().with_allow_http(origin.scheme() == "http");
        let options = SILENCE.into_iter().fold(options, |all, (key, limit)| all.with_config(key, limit));
        let settings = HttpBuilder::new().with_url(origin).with_client_options(options);
        let store = settings.with_retry(retries()).build().map_err(|error| describe(&error))?;
        Ok(Self { store: Arc::new(store), path, wanted: Wanted::File })
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

pub(super) fn describe(error: &Error) -> String {
    let text = with_causes(error);
    // A refused list request has no error variant.
    let is_refused = matches!(error, Error::PermissionDenied { .. } | Error::Unauthenticated { .. });
    match error {
        // A server that refuses a request by its method has this error variant too.
        Error::NotFound { .. } if !text.contains("405 Method Not Allowed") => {
            "is not there: check the name".into()
        }
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
        for (url, wanted, path, found, of_store) in [
            ("s3://b/a/c", Wanted::Either, "a/c", Wanted::Either, &[r#"bucket: "b""#][..]),
            ("s3://b/a/c/", Wanted::Either, "a/c", Wanted::Folder, &[r#"bucket: "b""#]),
            ("s3://b", Wanted::Folder, "", Wanted::Folder, &[r#"bucket: "b""#]),
            (
                "https://host:8443/some%20dir/x.csv",
                Wanted::Either,
                "some dir/x.csv",
                Wanted::File,
                &[r#"scheme: "https""#, r#"Domain("host")"#, "Some(8443)", r#"path: "/""#],
            ),
        ] {
            let address = Address::read(url, wanted).unwrap();
            assert_eq!((address.path, address.wanted), (Path::from(path), found), "{url}");
            let store = format!("{:?}", address.store);
            assert!(of_store.iter().all(|part| store.contains(part)), "{url}: {store}");
        }
    }

    #[test]
    fn a_refused_method_is_no_missing_object() {
        for (status, expected) in
            [("404 Not Found", "is not there"), ("405 Method Not Allowed", "405 Method")]
        {
            let source = format!("Server returned non-2xx status code: {status}: ").into();
            let message = describe(&Error::NotFound { path: "a.csv".into(), source });
            assert!(message.contains(expected), "{message}");
        }
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
