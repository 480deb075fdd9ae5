//! Tests of remote sources: equal to local ones, fetched once, and never partial. Processes load them, since some are killed and credentials come
//! from the environment.

mod server;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use image::{Rgb, RgbImage};
use server::Server;
use tempfile::TempDir;
use unisono_data::{Cache, DataError, Dataset, Options, Source};
use unisono_testing::launch::this_program;
use unisono_testing::suite::{self, Test};
use unisono_testing::tests;

const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_folder_on_s3_equals_a_local_one,
        an_object_over_http_equals_a_local_file,
        concurrent_processes_fetch_once,
        a_killed_process_leaves_no_partial_files,
        only_changed_objects_are_fetched_again,
        an_interrupted_download_resumes,
        an_object_that_changes_during_a_download_is_refused,
        unavailable_objects_are_reported,
        objects_that_exceed_the_free_space_are_not_fetched,
    ]
}

/// Loads the source of the first argument with the cache of the second.
pub(crate) fn play(_: &str) -> ExitCode {
    let arguments: Vec<_> = std::env::args().collect();
    match load(&arguments[1], Path::new(&arguments[2])).and_then(|data| data.fingerprint()) {
        Ok(fingerprint) => println!("{fingerprint}"),
        Err(error) => println!("error: {error}"),
    }
    ExitCode::SUCCESS
}

fn load(source: &str, cache: &Path) -> Result<Dataset, DataError> {
    let cache = Cache { folder: Some(cache.into()), report: None };
    unisono_data::load(&source.parse()?, &Options { cache, ..Options::default() })
}

/// A loading process, killed when it is dropped.
struct Loading(Child);

impl Loading {
    fn start(server: &Server, source: &str, cache: &Path) -> Self {
        let mut command = Command::new(this_program());
        suite::play(&mut command, "remote", "load").arg(source).arg(cache).stdout(Stdio::piped());
        command
            .env("AWS_ENDPOINT_URL", server.url(""))
            .env("AWS_ALLOW_HTTP", "true")
            .env("AWS_REGION", "here");
        command.env("AWS_ACCESS_KEY_ID", "me").env("AWS_SECRET_ACCESS_KEY", "secret");
        Self(command.spawn().unwrap())
    }

    /// Returns whether the process fetches, or waits for another one that does.
    fn has_opened_the_lock(&self) -> bool {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.0.id())).into_iter().flatten().flatten();
        open.filter_map(|file| std::fs::read_link(file.path()).ok()).any(|path| path.ends_with("lock"))
    }

    /// Returns its output.
    fn output(mut self) -> String {
        until("the process ends", || self.0.try_wait().unwrap().is_some());
        let mut output = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut output).unwrap();
        output.trim().to_owned()
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < DEADLINE, "{what}: not in {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

// ===== Data. =====

const TABLE: &str =
    "a,b,label\n1,2,x\n3,4,y\n5,6,x\n7,8,y\n9,1,x\n2,3,y\n4,5,x\n6,7,y\n8,9,x\n1,3,y\n2,4,x\n3,5,y\n";

/// Returns images of two classes, with their paths below a folder.
fn images() -> Vec<(String, Vec<u8>)> {
    let image = |number: usize| {
        let path = format!("{}/{number:02}.png", ["ant hill", "bee"][number % 2]);
        let mut bytes = vec![];
        let image = RgbImage::from_fn(8, 8, |x, y| Rgb([x as u8 * 9, y as u8 * 9, number as u8]));
        image.write_to(&mut std::io::Cursor::new(&mut bytes), image::ImageFormat::Png).unwrap();
        (path, bytes)
    };
    (0..24).map(image).collect()
}

/// Returns a server whose bucket has the images below `some/train`, with the empty objects that some tools write for
/// folders.
fn bucket() -> Server {
    let server = Server::new(&[
        ("bucket/some/train/", b""),
        ("bucket/some/train/bee/", b""),
        ("bucket/some/train/empty/", b""),
        ("bucket/some/trainer", b"other"),
    ]);
    let objects = images().into_iter().map(|(path, bytes)| (format!("bucket/some/train/{path}"), bytes));
    server.state().objects.extend(objects);
    server
}

/// Returns the fingerprint of the same images in a local folder.
fn of_local_images() -> String {
    let folder = TempDir::new().unwrap();
    for (path, bytes) in images() {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    let data = unisono_data::load(&Source::Images(folder.path().into()), &Options::default()).unwrap();
    data.fingerprint().unwrap().to_string()
}

/// Returns all files below a folder, with their contents, sorted.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = vec![];
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.path() {
            path if path.is_dir() => found.extend(files(&path)),
            path => found.push((path.clone(), std::fs::read(path).unwrap())),
        }
    }
    found.sort();
    found
}

/// Returns the folder of the only URL in a cache.
fn only(cache: &TempDir) -> PathBuf {
    let mut entries = std::fs::read_dir(cache.path()).unwrap();
    let only = entries.next().unwrap().unwrap().path();
    assert!(entries.next().is_none());
    only
}

fn cache() -> TempDir {
    TempDir::new().unwrap()
}

const IMAGES: &str = "images:s3://bucket/some/train/";

// ===== Tests. =====

fn a_folder_on_s3_equals_a_local_one() {
    let (server, cache) = (bucket(), cache());
    assert_eq!(Loading::start(&server, IMAGES, cache.path()).output(), of_local_images());
    assert_eq!(server.state().gets.len(), images().len());
    // Without a slash, the URL could name an object, but none exists.
    let without = Loading::start(&server, "images:s3://bucket/some/train", cache.path()).output();
    assert_eq!(without, of_local_images());
    // The folder has a folder of its own for training.
    let above = Loading::start(&server, "images:s3://bucket/some/", cache.path()).output();
    assert_eq!(above, of_local_images());
}

fn an_object_over_http_equals_a_local_file() {
    let (server, cache) = (Server::new(&[("some dir/a.csv", TABLE.as_bytes())]), cache());
    let local = cache.path().join("local.csv");
    std::fs::write(&local, TABLE).unwrap();
    let expected = load(&format!("csv:{}", local.display()), cache.path()).unwrap();
    let source = format!("csv:{}", server.url("some%20dir/a.csv"));
    assert_eq!(load(&source, cache.path()).unwrap(), expected);
    assert_eq!(load(&source, cache.path()).unwrap(), expected);
    assert_eq!(server.state().gets.len(), 1);
}

fn concurrent_processes_fetch_once() {
    let (server, cache) = (bucket(), cache());
    server.state().waits = true;
    let loading: Vec<_> = (0..3).map(|_| Loading::start(&server, IMAGES, cache.path())).collect();
    until("one fetches", || !server.state().gets.is_empty());
    until("the others wait for it", || loading.iter().all(Loading::has_opened_the_lock));
    server.state().waits = false;
    let expected = of_local_images();
    loading.into_iter().for_each(|loading| assert_eq!(loading.output(), expected));
    assert_eq!(server.state().gets.len(), images().len());
}

fn a_killed_process_leaves_no_partial_files() {
    let (server, cache) = (bucket(), cache());
    server.state().waits = true;
    let killed = Loading::start(&server, IMAGES, cache.path());
    let has_parts = || files(&only(&cache).join("parts")).iter().any(|(_, bytes)| !bytes.is_empty());
    until("objects are half there", || !server.state().gets.is_empty() && has_parts());
    drop(killed);
    let whole: Vec<_> = images().into_iter().map(|(_, bytes)| bytes).collect();
    for (path, bytes) in files(&only(&cache).join("files")) {
        assert!(whole.contains(&bytes), "{}", path.display());
    }
    server.state().waits = false;
    assert_eq!(Loading::start(&server, IMAGES, cache.path()).output(), of_local_images());
    assert!(files(&only(&cache).join("parts")).is_empty());
}

fn only_changed_objects_are_fetched_again() {
    let (server, cache) = (bucket(), cache());
    Loading::start(&server, IMAGES, cache.path()).output();
    let (of_another, changed, vanished) =
        (images()[2].1.clone(), "bucket/some/train/bee/03.png", "bucket/some/train/bee/05.png");
    {
        let mut state = server.state();
        state.gets.clear();
        state.objects.insert(changed.into(), of_another.clone());
        state.objects.remove(vanished);
    }
    Loading::start(&server, IMAGES, cache.path()).output();
    assert_eq!(server.state().gets, [changed]);
    let mirror = only(&cache).join("files");
    assert_eq!(std::fs::read(mirror.join("bee/03.png")).unwrap(), of_another);
    assert!(!mirror.join("bee/05.png").exists());
    assert_eq!(files(&mirror).len(), images().len() - 1);
    // Removes a whole class, and leaves a file that a killed process did not record.
    server.state().objects.retain(|path, _| !path.contains("/bee"));
    std::fs::write(mirror.join("ant hill/99.png"), "of before").unwrap();
    Loading::start(&server, IMAGES, cache.path()).output();
    assert!(!mirror.join("bee").exists());
    assert_eq!(files(&mirror).len(), 12);
}

fn an_interrupted_download_resumes() {
    let (server, cache) = (Server::new(&[("a.csv", TABLE.as_bytes())]), cache());
    server.state().cuts = 2;
    let source = format!("csv:{}", server.url("a.csv"));
    let loaded = load(&source, cache.path()).unwrap();
    assert_eq!(loaded.train.len() + loaded.test.len(), 12);
    assert_eq!(files(&only(&cache).join("files"))[0].1, TABLE.as_bytes());
    // An object with a connection that is always cut.
    server.state().objects.insert("b.csv".into(), TABLE.replace('1', "2").into());
    server.state().cuts = usize::MAX;
    let cache = self::cache();
    let message = load(&format!("csv:{}", server.url("b.csv")), cache.path()).unwrap_err().to_string();
    assert!(message.contains("/b.csv`: cannot be fetched: ") || message.contains("was cut off"), "{message}");
    assert!(files(&only(&cache).join("files")).is_empty());
}

fn an_object_that_changes_during_a_download_is_refused() {
    let (server, cache) = (Server::new(&[("a.csv", TABLE.as_bytes())]), cache());
    server.state().changes = vec![("a.csv".into(), TABLE.replace('9', "7").into())];
    let source = format!("csv:{}", server.url("a.csv"));
    let message = load(&source, cache.path()).unwrap_err().to_string();
    assert!(
        message.ends_with(
            "/a.csv`: was changed while it was fetched: start again once nothing is written there"
        ),
        "{message}"
    );
    assert!(files(&only(&cache).join("files")).is_empty());
    load(&source, cache.path()).unwrap();
}

fn unavailable_objects_are_reported() {
    let (server, cache) = (bucket(), cache());
    let message = load(&format!("text:{}", server.url("none.txt")), cache.path()).unwrap_err().to_string();
    assert!(message.ends_with("/none.txt`: is not there: check the name"), "{message}");
    for source in ["csv:s3://bucket/none.csv", "tfrecord:s3://bucket/none"] {
        let message = Loading::start(&server, source, cache.path()).output();
        assert!(message.ends_with("check the name"), "{message}");
    }
    let of_two = format!("{0},{0}", server.url("none.csv"));
    for name in [of_two, server.url("part-*.csv"), server.url("part-{1..2}.csv")] {
        let message = load(&format!("csv:{name}"), cache.path()).unwrap_err().to_string();
        assert!(message.contains("; a URL names one object or folder: "), "{message}");
    }
    let message = load(&format!("npy:{}", server.url("a.npy")), cache.path()).unwrap_err().to_string();
    assert!(message.contains("a.npy`: cannot be listed: "), "{message}");
    if cfg!(feature = "parquet") {
        let message = load("parquet:s3://bucket/some/", cache.path()).unwrap_err().to_string();
        assert!(message.contains("`s3://bucket/some/`: names a folder"), "{message}");
    }
    server.state().forbids = true;
    let message = Loading::start(&server, IMAGES, cache.path()).output();
    assert!(message.contains("`s3://bucket/some/train/`: may not be read: "), "{message}");
    assert!(message.contains("set AWS_ACCESS_KEY_ID and"), "{message}");
    let url = server.url("a.csv");
    drop(server);
    let message = load(&format!("csv:{url}"), cache.path()).unwrap_err().to_string();
    assert!(message.contains(&format!("`{url}`: cannot be fetched: ")), "{message}");
    assert!(message.contains("refused"), "{message}");
}

fn objects_that_exceed_the_free_space_are_not_fetched() {
    let (server, cache) = (Server::new(&[("a.csv", TABLE.as_bytes())]), cache());
    server.state().claims = Some(1 << 60);
    let message = load(&format!("csv:{}", server.url("a.csv")), cache.path()).unwrap_err().to_string();
    assert!(message.contains("does not fit: 1152921504.6 GB are to be fetched, and `"), "{message}");
    assert!(message.contains("name another folder by --data-cache"), "{message}");
    assert!(server.state().gets.is_empty());
}
