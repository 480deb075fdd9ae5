//! Sources on servers: their objects are mirrored into a local folder once, where every reader finds plain files.

use std::borrow::Cow;

use crate::cache::Cache;
use crate::error::DataError;
use crate::source::Source;

#[cfg(feature = "remote")]
mod address;
#[cfg(feature = "remote")]
mod folder;
#[cfg(feature = "remote")]
mod manifest;
#[cfg(feature = "remote")]
mod mirror;
#[cfg(feature = "remote")]
mod server;

/// What a reader can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    File,
    Folder,
    Either,
}

/// The source that is to be read: this one, or if it is on a server its mirror in the cache, which is brought up to date.
pub(crate) fn local<'a>(source: &'a Source, cache: &Cache) -> Result<Cow<'a, Source>, DataError> {
    let Some(url) = source.path().filter(|_| source.is_remote()) else { return Ok(Cow::Borrowed(source)) };
    let url = url.display().to_string();
    let wanted = match source {
        Source::Text(_) | Source::Csv(_) => Wanted::File,
        Source::Idx(_) | Source::Images(_) | Source::Cifar(_) => Wanted::Folder,
        _ => Wanted::Either,
    };
    let path = mirrored(&url, wanted, cache).map_err(|problem| DataError::Remote { url, problem })?;
    Ok(Cow::Owned(source.moved_to(path)))
}

#[cfg(feature = "remote")]
use mirror::mirrored;

#[cfg(not(feature = "remote"))]
fn mirrored(_: &str, _: Wanted, _: &Cache) -> Result<std::path::PathBuf, String> {
    Err("this program was built without remote sources: build it with the feature `remote`, or fetch the files and name their \
         folder"
        .into())
}

#[cfg(all(test, not(feature = "remote")))]
mod tests {
    use super::*;

    #[test]
    fn without_the_feature_a_url_is_refused_with_what_to_do() {
        let source = Source::Csv("s3://bucket/a.csv".into());
        let message = local(&source, &Cache::default()).unwrap_err().to_string();
        assert!(message.starts_with("`s3://bucket/a.csv`: this program was built without"), "{message}");
        assert!(message.contains("build it with the feature `remote`"), "{message}");
    }
}
