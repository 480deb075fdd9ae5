//! Servers of batches, and training that uses them, as processes that a user starts.

use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use image::{GrayImage, Luma};
use serde_json::Value;
use tempfile::TempDir;
use unisono_testing::launch::{self, Ended};
use unisono_testing::suite::Test;
use unisono_testing::tests;

use crate::UNISONO;

/// The time limit of one command.
const DEADLINE: Duration = Duration::from_secs(60);

/// Creates a folder with images of two classes, and a token.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..100_u32 {
        let class = folder.path().join("images").join(["a", "b"][number as usize % 2]);
        fs::create_dir_all(&class).unwrap();
        let image = GrayImage::from_fn(28, 28, |x, y| Luma([(x * y * (1 + number % 2) + 7 * number) as u8]));
        image.save(class.join(format!("{number:03}.png"))).unwrap();
    }
    token(&folder.path().join("token"), 0o600);
    folder
}

fn token(path: &Path, mode: u32) {
    fs::write(path, "a-token-that-nobody-guesses").unwrap_or_else(|error| panic!("{error}"));
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn unisono(folder: &Path, arguments: &str) -> Command {
    let mut command = Command::new(UNISONO);
    command.args(arguments.split_whitespace()).current_dir(folder);
    command
}

/// A server that is killed at the end of the test.
struct Served {
    child: Child,
    address: String,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Served {
    fn start(folder: &Path, more: &str) -> Self {
        let fixed = "serve-data --listen 127.0.0.1:0 --token-file token --concurrency 1";
        let mut command = unisono(folder, &format!("{fixed} {more}"));
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the command starts");
        let (says, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| says.send(line)));
        let mut this = Self { child, address: String::new(), lines };
        // Reports about images precede this line.
        let ready = std::iter::repeat_with(|| this.line()).find(|line| line.starts_with("serving"));
        let ready = ready.expect("lines are without an end");
        let address = ready.rsplit(' ').next().unwrap().to_owned();
        let source = more.split_whitespace().nth(1).unwrap();
        assert_eq!(ready, format!("serving {source} (90 training, 10 held-out samples) on {address}"));
        this.address = address;
        this
    }

    /// Returns the next line of the server's output.
    fn line(&self) -> String {
        self.lines.recv_timeout(DEADLINE).expect("the server prints a line")
    }

    /// Requests the server to end, and returns the number of batches that it produced.
    fn end(mut self, signal: &str) -> u64 {
        let id = self.child.id().to_string();
        Command::new("kill").args([signal, &id]).status().expect("kill starts");
        let told = self.line();
        assert!(self.child.wait().expect("it is ours").success(), "{told}");
        let made = told.split_once(": ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        made.unwrap_or_else(|| panic!("{told}"))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // The server may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const IMAGES: &str = "--data images:images --augment";
/// A short run with many small batches.
const TRAIN: &str = "train --threads 2 --model mlp --hidden 8 --batch-size 5 --format json --seed 3";

fn train(folder: &Path, arguments: &str) -> Ended {
    launch::run(unisono(folder, &format!("{TRAIN} {arguments}")), DEADLINE)
}

/// Returns the last line of a run.
fn done(ended: Ended) -> Value {
    let ended = ended.expect_success();
    let last = ended.stdout.lines().last().expect("a run says at least that it is done");
    serde_json::from_str(last).expect("an object a line")
}

fn by(servers: &[&Served]) -> String {
    let servers: Vec<_> = servers.iter().map(|server| server.address.as_str()).collect();
    format!("--data service:{} --data-token-file token", servers.join(","))
}

fn parameters_do_not_depend_on_the_producer_of_batches() {
    let folder = folder();
    let path = folder.path();
    let local = done(train(path, &format!("{IMAGES} --epochs 3")));
    let (one, two) = (Served::start(path, IMAGES), Served::start(path, IMAGES));
    let served = done(train(path, &format!("{} --epochs 3", by(&[&one, &two]))));
    for figure in ["parameters_hash", "loss", "test_loss", "test_accuracy"] {
        assert_eq!(served[figure], local[figure], "{figure}");
    }
    let (one, two) = (one.end("-TERM"), two.end("-INT"));
    assert!(one > 0 && two > 0, "{one} and {two}");
}

fn run_survives_a_killed_server_and_uses_a_joining_one() {
    let folder = folder();
    let path = folder.path();
    const EPOCHS: usize = 60;
    let local = done(train(path, &format!("{IMAGES} --epochs {EPOCHS}")));
    let (first, mut second) = (Served::start(path, IMAGES), Served::start(path, IMAGES));
    let mut run = unisono(path, &format!("{TRAIN} {} --epochs {EPOCHS}", by(&[&first, &second])));
    let mut run = run.stdout(Stdio::piped()).spawn().expect("the command starts");
    let (says, lines) = channel();
    let stdout = BufReader::new(run.stdout.take().unwrap());
    thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| says.send(line)));
    let next = || lines.recv_timeout(DEADLINE).expect("the run goes on");
    (0..3).for_each(|_| drop(next()));
    second.child.kill().expect("it is ours");
    let third = Served::start(path, &format!("{IMAGES} --join {}", first.address));
    let mut last = next();
    while let Ok(line) = lines.recv_timeout(DEADLINE) {
        last = line;
    }
    assert!(run.wait().expect("it is ours").success(), "{last}");
    let done: Value = serde_json::from_str(&last).expect("an object a line");
    assert_eq!(done["parameters_hash"], local["parameters_hash"]);
    let (first, third) = (first.end("-TERM"), third.end("-TERM"));
    assert!(first > 0 && third > 0, "{first} and {third}");
}

fn run_resumes_with_other_servers_of_the_same_data() {
    let folder = folder();
    let path = folder.path();
    let whole = done(train(path, &format!("{IMAGES} --epochs 2")));
    let one = Served::start(path, IMAGES);
    let half = format!("{} --epochs 2 --checkpoint-dir saved --checkpoint-every 10", by(&[&one]));
    let mut run = unisono(path, &format!("{TRAIN} {half}"));
    // The run is stopped at its first step, as a preempted run is.
    let stopped = launch::run_and_interrupt(
        {
            run.args(["--resume"]);
            run
        },
        DEADLINE,
    );
    assert!(stopped.status.success() || stopped.status.code() == Some(75), "{}", stopped.stderr);
    drop(one);
    let two = Served::start(path, IMAGES);
    let resumed = train(path, &format!("{} --epochs 2 --checkpoint-dir saved --resume", by(&[&two])));
    assert_eq!(done(resumed)["parameters_hash"], whole["parameters_hash"]);

    let plain = Served::start(path, "--data images:images");
    let refused = train(path, &format!("{} --epochs 2 --checkpoint-dir saved --resume", by(&[&plain])));
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("the samples are not those that it was trained on"),
        "{}",
        refused.stderr
    );

    let refused = launch::run(unisono(path, "evaluate --checkpoint saved"), DEADLINE);
    assert!(
        refused.stderr.contains("makes batches for training: a saved model is evaluated")
            && refused.stderr.contains("name them with --data"),
        "{}",
        refused.stderr
    );
    let own = launch::run(unisono(path, "evaluate --checkpoint saved --data images:images"), DEADLINE);
    assert!(own.expect_success().stdout.split_whitespace().any(|word| word == "10"), "10 held-out samples");
}

fn wait_for_a_server_is_reported_and_ended_by_a_signal() {
    let folder = folder();
    for (arguments, code) in [
        ("train --threads 2 --data service:127.0.0.1:1 --data-token-file token", 75),
        ("launch -n 2 -- UNISONO train --data service:127.0.0.1:1 --data-token-file token", 75),
        ("serve-data --listen 0.0.0.0:0 --token-file token --data images:images --join 127.0.0.1:1", 0),
    ] {
        let arguments = arguments.replace("UNISONO", UNISONO);
        let child =
            unisono(folder.path(), &arguments).stderr(Stdio::piped()).spawn().expect("the command starts");
        let (says, lines) = channel();
        let mut this = Served { child, address: String::new(), lines };
        let stderr = BufReader::new(this.child.stderr.take().unwrap());
        thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| says.send(line)));
        let mut said = this.line();
        while !said.contains("waiting for") {
            assert!(said.contains("data server `127.0.0.1:1`: "), "{arguments}: {said}");
            said = this.line();
        }
        assert!(said.contains("127.0.0.1:1`"), "{arguments}: {said}");
        let id = this.child.id().to_string();
        Command::new("kill").args(["-TERM", &id]).status().expect("kill starts");
        let began = Instant::now();
        let status = this.child.wait().expect("it is ours");
        assert_eq!(status.code(), Some(code), "{arguments}");
        assert!(began.elapsed() < Duration::from_secs(10), "{arguments}: {:?}", began.elapsed());
    }
}

fn server_reachable_from_other_machines_warns() {
    let folder = folder();
    let mut command =
        unisono(folder.path(), "serve-data --listen 0.0.0.0:0 --token-file token --data images:images");
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("the command starts");
    let (says, lines) = channel();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| says.send(line)));
    let said = Served { child, address: String::new(), lines }.line();
    assert!(said.contains("other machines can reach 0.0.0.0:") && said.contains("unencrypted"), "{said}");
}

fn invalid_settings_are_reported() {
    let folder = folder();
    let path = folder.path();
    let refusal = |arguments: &str| {
        let ended = launch::run(unisono(path, arguments), DEADLINE);
        assert_eq!(ended.status.code(), Some(2), "{arguments}: {}", ended.stderr);
        ended.stderr
    };
    token(&path.join("open"), 0o644);
    let served = Served::start(path, IMAGES);
    let address = &served.address;
    let listen = "serve-data --listen 127.0.0.1:0";
    for (arguments, said) in [
        (format!("{listen} --data digits"), "required arguments were not provided: --token-file <FILE>"),
        (format!("{listen} --token-file open"), "others may read it (mode 644): run `chmod 600` on it"),
        (format!("{listen} --token-file token --data digits --augment"), "--augment has no effect without"),
        (
            format!("{listen} --token-file token --data service:{address}"),
            "pass the original --data, and --join a server",
        ),
        (format!("{listen} --token-file token --join {address}"), "cannot join it: it serves other data"),
        (
            format!("inspect-input --data service:{address}"),
            "name the file that holds it (--data-token-file)",
        ),
        (format!("inspect-input --data service:{address} --augment"), "start serve-data with it"),
        (
            "inspect-input --data-token-file token".to_owned(),
            "has no effect without --data service:HOST:PORT",
        ),
    ] {
        let stderr = refusal(&arguments);
        assert!(stderr.contains(said), "{arguments}: {stderr}");
    }
    let inspect = format!("inspect-input {} --epochs 1", by(&[&served]));
    let table = launch::run(unisono(path, &inspect), DEADLINE).expect_success().stdout;
    let servers =
        table.split("servers ").nth(1).and_then(|share| share.split(' ').next()?.parse::<u32>().ok());
    assert!(table.contains("epoch 1: 90 samples"), "{table}");
    assert!(servers.is_some_and(|percent| percent > 50), "the servers take most of the time: {table}");
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        parameters_do_not_depend_on_the_producer_of_batches,
        run_survives_a_killed_server_and_uses_a_joining_one,
        run_resumes_with_other_servers_of_the_same_data,
        wait_for_a_server_is_reported_and_ended_by_a_signal,
        server_reachable_from_other_machines_warns,
        invalid_settings_are_reported,
    ]
}
