//! Tests of servers and clients on this machine.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use image::{GrayImage, Luma};

use super::client::connect;
use super::*;
use tempfile::TempDir;
use unisono_data::{Batch, Pass, Pipeline, Service, Threads};

mod failures;
mod sharing;

/// The files of a test.
struct Fixture {
    directory: TempDir,
}

fn varied() -> Options {
    let augmentation = "affine,mirror".parse().unwrap();
    Options { train_samples: 300, test_samples: 30, context: 8, augmentation, ..Options::default() }
}

impl Fixture {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let this = Self { directory };
        this.token("token", "0123456789abcdef0123456789abcdef");
        this
    }

    fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::write(&path, contents).unwrap();
        path
    }

    fn token(&self, name: &str, token: &str) -> PathBuf {
        let path = self.file(name, token);
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// Writes images of two classes.
    fn images(&self, side: u32, count: u32) -> Source {
        let root = self.directory.path().join(format!("images-{side}"));
        for class in ["a", "b"] {
            fs::create_dir_all(root.join(class)).unwrap();
        }
        for number in 0..count {
            let image =
                GrayImage::from_fn(side, side, |x, y| Luma([(x * y + 37 * number + (x ^ y) * number) as u8]));
            image.save(root.join(["a", "b"][number as usize % 2]).join(format!("{number:03}.png"))).unwrap();
        }
        Source::Images(root)
    }

    fn settings(&self) -> ServerSettings {
        ServerSettings {
            listen: "127.0.0.1:0".to_owned(),
            token: Token::read(&self.directory.path().join("token")).unwrap(),
            threads: 1,
            cache_bytes: 64 << 20,
            join: None,
            advertise: None,
        }
    }

    fn serve(&self, source: &Source) -> Server {
        start(source, &varied(), self.settings()).unwrap()
    }

    fn service(&self, servers: &[&Server]) -> Service {
        let servers = servers.iter().map(|server| server.address().to_string()).collect();
        Service { servers, token_file: Some(self.directory.path().join("token")) }
    }

    /// Connects to these servers, with a timeout of a second. Returns their data set.
    fn connect(&self, servers: &[&Server]) -> Result<Dataset, DataError> {
        connect(&self.service(servers), Duration::from_secs(1), &Options::default())
    }
}

fn start(source: &Source, options: &Options, settings: ServerSettings) -> Result<Server, DataError> {
    Server::start(load(source, options)?, (source, options), settings)
}

const PASS: Pass = Pass::Training { seed: 3, epoch: 1 };

/// Returns the batches of an epoch and of an evaluation. Calls `between` with the number of each batch of the epoch.
fn epoch(data: &Dataset, between: impl FnMut(usize)) -> Vec<Batch> {
    batches(data, 7, between).unwrap()
}

fn batches(data: &Dataset, size: usize, mut between: impl FnMut(usize)) -> Result<Vec<Batch>, DataError> {
    let order = data.train.order(3, 1);
    let chunks: Vec<_> = order.chunks(size).map(<[usize]>::to_vec).collect();
    let train = data.train.clone();
    let made = Pipeline::of(chunks)
        .map(data.train.threads(Threads::Auto), move |samples| train.batch(&samples, PASS));
    let made = made.enumerate().map(|(number, batch)| {
        between(number);
        batch
    });
    let mut made = made.collect::<Result<Vec<_>, _>>()?;
    let held_out: Vec<_> = (0..data.test.len()).collect();
    made.push(data.test.batch(&held_out, Pass::Evaluation)?);
    Ok(made)
}

/// Waits until a condition holds, with a timeout of some seconds.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn served_batches_are_bit_identical_to_local_ones() {
    let fixture = Fixture::new();
    let rows: String = (0..60).map(|row| format!("{row},{},{}\n", row * row, ["x", "y"][row % 2])).collect();
    let table = fixture.file("table.csv", format!("a,b,label\n{rows}"));
    let text = fixture.file("text.txt", "to be or not to be, that is the question. ".repeat(40));
    for source in [fixture.images(20, 60), Source::Csv(table), Source::Text(text), Source::Digits] {
        let local = load(&source, &varied()).unwrap();
        let (one, two) = (fixture.serve(&source), fixture.serve(&source));
        let served = load(&Source::Service(fixture.service(&[&one, &two])), &Options::default()).unwrap();
        assert_eq!((&served.kind, &served.schema), (&local.kind, &local.schema), "{source}");
        assert_eq!((served.train.len(), served.test.len()), (local.train.len(), local.test.len()));
        assert_eq!(one.samples(), (local.train.len(), local.test.len()));
        assert_eq!(served.train.shift(3, 1), local.train.shift(3, 1));
        assert_eq!(epoch(&served, |_| ()), epoch(&local, |_| ()), "{source}");
        let (first, second) = (one.counts().made, two.counts().made);
        assert!(first > 0 && second > 0, "{source}: {first} and {second}");
        assert_eq!(first + second, served.train.len().div_ceil(7) as u64 + 1);
        // As for a checkpoint, which may resume with any server.
        let again = load(&Source::Service(fixture.service(&[&two])), &Options::default()).unwrap();
        assert_eq!(again.fingerprint().unwrap(), served.fingerprint().unwrap());
        assert_eq!(again, served);
    }
}

#[test]
fn the_targets_of_a_regression_are_served_bit_identically() {
    let fixture = Fixture::new();
    let rows: String = (0..60).map(|row| format!("{row},{},{}.25\n", row % 7, row * row)).collect();
    let source = Source::Csv(fixture.file("table.csv", format!("a,b,price\n{rows}")));
    let options = Options { target: Some("price".into()), ..Options::default() };
    let local = load(&source, &options).unwrap();
    let server = start(&source, &options, fixture.settings()).unwrap();
    let served = fixture.connect(&[&server]).unwrap();
    assert_eq!((&served.kind, &served.schema), (&local.kind, &local.schema));
    assert_eq!(epoch(&served, |_| ()), epoch(&local, |_| ()));
}

#[test]
fn data_and_options_determine_the_fingerprint() {
    let fixture = Fixture::new();
    let source = fixture.images(8, 30);
    let varied = fixture.serve(&source);
    let plain = start(&source, &Options::default(), fixture.settings()).unwrap();
    let [varied, plain] =
        [&varied, &plain].map(|server| fixture.connect(&[server]).unwrap().fingerprint().unwrap());
    assert_ne!(varied, plain);
}
