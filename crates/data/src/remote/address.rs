//! The parts of a URL: a bucket or a server, and an object or a folder there.

use object_store::path::Path;
use url::Url;

use super::Wanted;

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
    /// Parses a URL; the error describes the problem.
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
