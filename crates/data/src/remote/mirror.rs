//! Updates the mirror of a URL.

use std::cell::Cell;
use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::panic;
use std::path::{Path, PathBuf};
use std::thread;

use futures_util::stream::{self, TryChunksError};
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path as Location;
use object_store::{Error, GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt};

use super::Wanted;
use super::folder::{Folder, Manifest, Version, cannot};
use super::server::{Address, changed, describe};
use crate::byte_file::{amount, room};
use crate::once::sync_directory;
use crate::source::Cache;

const AT_ONCE: usize = 8;
/// The number of fetched objects after which they are recorded in the manifest.
const SETTLED: usize = 64;
/// The number of bytes of an object after which they are flushed to the disk. One flush of a large object could take longer than processes that wait
/// for this one expect progress.
const FLUSHED: u64 = 64 << 20;

/// Updates the mirror of a URL, and returns its path; the error describes the problem.
pub(super) fn mirrored(url: &str, wanted: Wanted, cache: &Cache) -> Result<PathBuf, String> {
    let run = || {
        let address = Address::read(url, wanted)?;
        let folder = Folder::locked(url, cache)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("cannot be fetched: {error}"))?;
        let report = |text: &str| cache.report(&format!("fetching {url}: {text}"));
        runtime.block_on(Mirror { address, folder }.update(&report))
    };
    // On a separate thread, since this one may be inside another runtime.
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("fetch".into()).spawn_scoped(scope, run);
        let thread = thread.map_err(|error| format!("cannot be fetched: cannot start a thread: {error}"))?;
        thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
    })
}

struct Mirror {
    address: Address,
    folder: Folder,
}

#[derive(Debug, Clone)]
struct Object {
    location: Location,
    version: Version,
}

impl Object {
    /// Describes the object found at `location`, to be kept at `path` of the mirror.
    fn new(path: &str, meta: ObjectMeta) -> Self {
        let ObjectMeta { location, last_modified, size, e_tag: etag, .. } = meta;
        let version = Version { path: path.into(), size, etag, modified: last_modified.timestamp() };
        Self { location, version }
    }
}

impl Mirror {
    /// Fetches objects that are missing or outdated, and removes those that the server no longer has.
    async fn update(self, report: &dyn Fn(&str)) -> Result<PathBuf, String> {
        let (objects, target) = self.find().await?;
        let path = self.folder.manifest();
        let kept = |error| cannot("write", &path, &error);
        let mut manifest = Manifest::open(path.clone()).map_err(kept)?;
        let is_missing = |object: &&Object| !manifest.has(&object.version, &self.file(object));
        let missing: Vec<_> = objects.iter().filter(is_missing).cloned().collect();
        if objects.iter().any(|object| object.version.is_unknown() && !is_missing(&object)) {
            report(
                "the server reports no versions, so the copies in the cache are used: remove them if the objects have changed",
            );
        }
        let files = self.folder.files();
        let expected = objects.iter().map(|object| self.file(object)).collect();
        sweep(&files, &expected).map_err(|error| cannot("clear", &files, &error))?;
        if !missing.is_empty() {
            sweep(&self.folder.parts(), &HashSet::new())
                .map_err(|error| cannot("clear", &self.folder.parts(), &error))?;
            let bytes = missing.iter().map(|object| object.version.size).sum();
            self.check_space(bytes)?;
            report(&format!("{} in {} files, into `{}`", amount(bytes), missing.len(), files.display()));
            self.fetch_all(missing, bytes, &mut manifest).await?;
        }
        let versions: Vec<_> = objects.into_iter().map(|object| object.version).collect();
        manifest.close(&versions).map_err(kept)?;
        Ok(target)
    }

    /// Returns the objects to mirror, and the path at which a reader will find them.
    async fn find(&self) -> Result<(Vec<Object>, PathBuf), String> {
        let Address { store, path, wanted } = &self.address;
        if *wanted != Wanted::Folder {
            let name = path.filename().expect("a path that names an object");
            match store.head(path).await {
                Ok(meta) => {
                    let object = Object::new(name, ObjectMeta { location: path.clone(), ..meta });
                    return Ok((vec![object], self.folder.files().join(name)));
                }
                Err(Error::NotFound { .. }) if *wanted == Wanted::Either => {}
                Err(error) => return Err(describe(&error)),
            }
        }
        let mut found = store.list((!path.is_root()).then_some(path));
        let mut objects = vec![];
        while let Some(meta) = found.try_next().await.map_err(|error| describe(&error))? {
            let count = objects.len();
            self.folder.write_progress(|| format!("{count} objects found"));
            let parts: Option<Vec<_>> = meta
                .location
                .prefix_match(path)
                .map(|parts| parts.map(|part| part.as_ref().to_owned()).collect());
            let below = parts.unwrap_or_default().join("/");
            if !below.is_empty() {
                objects.push(Object::new(&below, meta));
            }
        }
        let objects = self.without_markers(objects).await;
        if objects.is_empty() {
            return Err("has no objects: check the name".into());
        }
        Ok((objects, self.folder.files()))
    }

    /// Removes the empty objects that some tools write for folders. Their names end in a slash, which the listing drops.
    async fn without_markers(&self, objects: Vec<Object>) -> Vec<Object> {
        let paths = objects.iter().map(|object| Path::new(&object.version.path));
        let folders: HashSet<_> =
            paths.flat_map(|path| path.ancestors().skip(1)).map(Path::to_owned).collect();
        let mut kept = Vec::with_capacity(objects.len());
        for object in objects {
            let is_marker = object.version.size == 0
                && (folders.contains(Path::new(&object.version.path))
                    // The marker of an empty folder.
                    || matches!(self.address.store.head(&object.location).await, Err(Error::NotFound { .. })));
            if !is_marker {
                kept.push(object);
            }
        }
        kept
    }

    fn file(&self, object: &Object) -> PathBuf {
        self.folder.files().join(&object.version.path)
    }

    fn check_space(&self, bytes: u64) -> Result<(), String> {
        let folder = self.folder.files();
        let room = File::open(&folder).and_then(room);
        let [free, _] = room.map_err(|error| cannot("measure", &folder, &error))?;
        if bytes > free {
            return Err(format!(
                "does not fit: {} are to be fetched, and `{}` has {} left: free some, or name another folder by --data-cache",
                amount(bytes),
                folder.display(),
                amount(free)
            ));
        }
        Ok(())
    }

    async fn fetch_all(
        &self,
        missing: Vec<Object>,
        bytes: u64,
        manifest: &mut Manifest,
    ) -> Result<(), String> {
        let (count, received) = (missing.len(), Cell::new(0));
        let progress = |more: usize| {
            received.update(|received| received + more as u64);
            let received = received.get();
            self.folder.write_progress(|| format!("{received} of {bytes} bytes of {count} files"));
        };
        let fetched = missing.into_iter().enumerate().map(|(number, object)| {
            let progress = &progress;
            async move { self.fetch(&object, number, progress).await.map(|()| object.version) }
        });
        let mut fetched = stream::iter(fetched).buffer_unordered(AT_ONCE).try_chunks(SETTLED);
        while let Some(group) = fetched.next().await {
            let (whole, problem) = match group {
                Ok(whole) => (whole, None),
                Err(TryChunksError(whole, problem)) => (whole, Some(problem)),
            };
            self.settle(&whole, manifest)?;
            problem.map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// Fetches an object, under a temporary name until it is complete on disk.
    async fn fetch(&self, object: &Object, number: usize, progress: &impl Fn(usize)) -> Result<(), String> {
        let Object { location, version } = object;
        let of_object = |problem: String| match location == &self.address.path {
            true => problem,
            false => format!("{location} {problem}"),
        };
        let failed = |error: Error| of_object(describe(&error));
        // A weak tag never matches.
        let if_match = version.etag.clone().filter(|etag| !etag.starts_with("W/"));
        let found =
            self.address.store.get_opts(location, GetOptions { if_match, ..GetOptions::default() }).await;
        let found = found.map_err(failed)?;
        // For servers that ignore the condition.
        let tag = |etag: &Option<String>| etag.as_deref().map(|etag| etag.trim_matches('"').to_owned());
        let is_other = tag(&found.meta.e_tag).zip(tag(&version.etag)).is_some_and(|(now, then)| now != then);
        if is_other || found.meta.size != version.size {
            return Err(of_object(changed()));
        }
        let (part, target) = (self.folder.parts().join(number.to_string()), self.file(object));
        let unwritten = |error| cannot("write", &part, &error);
        let mut file = File::create(&part).map_err(unwritten)?;
        let (mut chunks, mut received) = (found.into_stream(), 0);
        while let Some(chunk) = chunks.try_next().await.map_err(failed)? {
            append(&mut file, &chunk, received).map_err(unwritten)?;
            received += chunk.len() as u64;
            progress(chunk.len());
        }
        if received != version.size {
            return Err(of_object(format!(
                "was cut off: {received} bytes arrived, expected {}; start again",
                version.size
            )));
        }
        file.sync_all().map_err(unwritten)?;
        let above = target.parent().expect("a file in a folder");
        fs::create_dir_all(above).map_err(|error| cannot("make", above, &error))?;
        fs::rename(&part, &target).map_err(|error| cannot("write", &target, &error))
    }

    /// Records files in the manifest, once their names are on disk too.
    fn settle(&self, versions: &[Version], manifest: &mut Manifest) -> Result<(), String> {
        let files = self.folder.files();
        let folders: BTreeSet<_> = versions
            .iter()
            .filter_map(|version| Some(files.join(&version.path).parent()?.to_owned()))
            .collect();
        for folder in folders {
            sync_directory(&folder).map_err(|error| cannot("write", &folder, &error))?;
        }
        manifest.add(versions).map_err(|error| cannot("write", &self.folder.manifest(), &error))
    }
}

/// Appends a chunk to a file of this length, and flushes the file at each multiple of [`FLUSHED`].
fn append(file: &mut File, chunk: &[u8], length: u64) -> io::Result<()> {
    file.write_all(chunk)?;
    if (length + chunk.len() as u64) / FLUSHED > length / FLUSHED { file.sync_data() } else { Ok(()) }
}

/// Removes all files below a folder except these, and folders that are then empty. They are the remains of an earlier process, and objects that the
/// server no longer has.
fn sweep(folder: &Path, kept: &HashSet<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            sweep(&path, kept)?;
            // Fails if the folder is not empty, which then stays.
            let _ = fs::remove_dir(path);
        } else if !kept.contains(&path) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_object_is_flushed_in_parts() {
        // Writes to this device succeed, and flushes fail.
        let mut file = File::options().write(true).open("/dev/null").unwrap();
        append(&mut file, &[0; 9], FLUSHED - 10).unwrap();
        let flushed = append(&mut file, &[0], FLUSHED - 1).unwrap_err();
        assert_eq!(flushed.kind(), io::ErrorKind::InvalidInput);
        append(&mut file, &[0], FLUSHED).unwrap();
    }
}
