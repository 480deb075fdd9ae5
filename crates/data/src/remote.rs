//! Sources on servers: their objects are mirrored once into a local folder, where every reader finds plain files.

use std::borrow::Cow;

use crate::{Cache, DataError, Source};

#[cfg(feature = "remote")]
mod folder;
#[cfg(feature = "remote")]
mod mirror;
#[cfg(feature = "remote")]
mod server;

/// The input formats of a reader.
#[cfg(feature = "remote")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    File,
    Folder,
    Either,
}

/// Returns the source to read: this one or, if it is remote, its mirror in the cache, which is updated first.
#[cfg_attr(not(feature = "remote"), expect(unused_variables))]
pub(crate) fn local<'a>(source: &'a Source, cache: &Cache) -> Result<Cow<'a, Source>, DataError> {
    let features = source.missing_features();
    if !features.is_empty() {
        return Err(DataError::other(format!(
            "`{source}` cannot be read: this program was built without `--features {}`",
            features.join(",")
        )));
    }
    #[cfg(feature = "remote")]
    if let Some(url) = source.path().filter(|_| source.is_remote()) {
        let url = url.display().to_string();
        let wanted = match source {
            Source::Text(_) | Source::Csv(_) | Source::Parquet(_) | Source::Arrow(_) => Wanted::File,
            Source::Idx(_) | Source::Npy(_) | Source::Images(_) | Source::Cifar(_) => Wanted::Folder,
            _ => Wanted::Either,
        };
        // The names of objects may have these characters.
        let is_list = url.contains([',', '*', '{']);
        let hint =
            if is_list { "; a URL names one object or folder: lists and patterns are for files" } else { "" };
        let path = mirror::mirrored(&url, wanted, cache)
            .map_err(|problem| DataError::other(format!("`{url}`: {problem}{hint}")))?;
        return Ok(Cow::Owned(source.moved_to(path)));
    }
    Ok(Cow::Borrowed(source))
}
