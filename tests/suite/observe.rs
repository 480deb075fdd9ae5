//! Metrics and traces of ranks that are processes, compared with the calls of the program.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use unisono::{Algorithm, Communicator, ReduceOp, Times, trace};
use unisono_testing::launch::{self, Ended};
use unisono_testing::suite::{self, Test};
use unisono_testing::tests;

const DEADLINE: Duration = Duration::from_secs(120);
/// The numbers of calls of each rank: short, long, in a group, and barriers.
const SHORT: u64 = 100;
const LONG: u64 = 5;
const LONG_BYTES: u64 = 64 << 10;
const IN_GROUP: u64 = 3;
/// The variable with a file: while it exists, ranks of the role `waits` do not end.
const HOLD: &str = "UNISONO_TEST_HOLD";

pub(crate) fn play(role: &str) -> ExitCode {
    if role == "fails" {
        return fails();
    }
    unisono::run(|comm: &mut Communicator| {
        calls(comm)?;
        if let Some(file) = std::env::var_os(HOLD) {
            while Path::new(&file).exists() {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        comm.barrier()
    })
}

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = tests![
        metrics_files_count_the_calls_of_each_rank,
        trace_of_each_rank_has_every_call,
        failure_is_counted_by_its_code,
        invalid_metrics_destination_is_an_error,
        port_in_use_is_an_error,
        dashboard_names_existing_metrics,
    ];
    tests.push(
        Test::new("a prometheus server finds the calls of each rank", a_server_finds_the_calls)
            .unless(no_prometheus),
    );
    tests
}

fn calls(comm: &mut Communicator) -> unisono::Result<()> {
    comm.set_choice(Algorithm::RecursiveDoubling)?;
    for _ in 0..SHORT {
        comm.all_reduce(&mut [1.0_f32; 2], ReduceOp::Sum)?;
    }
    for _ in 0..LONG {
        let mut array = {
            let _span = trace::span("make an array");
            vec![1.0_f32; LONG_BYTES as usize / 4]
        };
        comm.call().algorithm(Algorithm::Ring).label("long").all_reduce(&mut array, ReduceOp::Sum)?;
    }
    let mut group = comm.split(Some(0), 0)?.expect("every rank is in it");
    for _ in 0..IN_GROUP {
        group.call().algorithm(Algorithm::Tree).broadcast(&mut [1_u8; 10], 0)?;
    }
    drop(group);
    if comm.rank() == 0 {
        comm.send(&[1.0_f64; 4], 1)?;
    } else {
        comm.receive(&mut [0.0_f64; 4], 0)?;
        // A long wait, since a wait is counted only from its first read of the clock, which may be late on a busy machine.
        std::thread::sleep(Duration::from_secs(3));
    }
    comm.barrier()?;
    let busy = Duration::from_secs(if comm.rank() == 1 { 10 } else { 1 });
    comm.compare_times(Times { busy, waited: Duration::ZERO }).map(drop)
}

/// Rank 1 leaves, and rank 0 waits for it.
fn fails() -> ExitCode {
    let mut comm = unisono::Unisono::builder().detect().expect("the ranks find each other");
    let ended = if comm.rank() == 0 { comm.barrier() } else { Ok(()) };
    assert_eq!(ended.is_err(), comm.rank() == 0);
    ExitCode::SUCCESS
}

/// Returns the command for two ranks of a role, with these settings.
fn command(role: &str, settings: &[(&str, &str)]) -> Command {
    let mut command = launch::processes(2, &launch::this_program());
    command.env(suite::ROLE, format!("observe::{role}")).envs(settings.iter().copied());
    command
}

fn run(role: &str, settings: &[(&str, &str)]) -> Ended {
    launch::run(command(role, settings), DEADLINE)
}

/// Parses the samples of a text, by name and labels.
fn samples(text: &str) -> BTreeMap<(String, String), f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (series, value) = line.rsplit_once(' ').expect("a series and a value");
        let (name, labels) = series.split_once('{').expect("labels");
        let labels = labels.strip_suffix('}').expect("an end of labels");
        ((name.to_owned(), labels.to_owned()), value.parse().expect("a number"))
    };
    lines.map(sample).collect()
}

fn metrics_files_count_the_calls_of_each_rank() {
    let folder = tempfile::tempdir().unwrap();
    run("calls", &[("UNISONO_METRICS", folder.path().to_str().unwrap())]).expect_success();
    let files: BTreeSet<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(files, ["unisono-rank-0.prom", "unisono-rank-1.prom"].map(Into::into).into());
    for rank in 0..2 {
        let text = fs::read_to_string(folder.path().join(format!("unisono-rank-{rank}.prom"))).unwrap();
        let samples = samples(&text);
        let of = |name: &str, labels: &str| {
            let labels = format!("rank=\"{rank}\"{labels}");
            samples.get(&(name.to_owned(), labels)).copied()
        };
        let kind = |operation: &str, algorithm: &str| {
            format!(",operation=\"{operation}\",algorithm=\"{algorithm}\"")
        };
        let ring = kind("all-reduce", "ring");
        assert_eq!(of("unisono_world_size", ""), Some(2.0), "{text}");
        assert_eq!(of("unisono_calls_total", &ring), Some(LONG as f64), "{text}");
        assert_eq!(of("unisono_bytes_total", &ring), Some((LONG * LONG_BYTES) as f64), "{text}");
        // The factor of an all-reduce among two ranks is 1.
        assert_eq!(of("unisono_bus_bytes_total", &ring), Some((LONG * LONG_BYTES) as f64), "{text}");
        assert_eq!(of("unisono_call_seconds_count", &ring), Some(LONG as f64), "{text}");
        assert!(of("unisono_call_seconds_sum", &ring).is_some_and(|seconds| seconds > 0.0), "{text}");
        let short = kind("all-reduce", "recursive-doubling");
        assert_eq!(of("unisono_calls_total", &short), Some(SHORT as f64), "{text}");
        assert_eq!(of("unisono_calls_total", &kind("broadcast", "tree")), Some(IN_GROUP as f64), "{text}");
        let message = kind(if rank == 0 { "send" } else { "receive" }, "point-to-point");
        assert_eq!(of("unisono_calls_total", &message), Some(1.0), "{text}");
        assert_eq!(of("unisono_bytes_total", &message), Some(32.0), "{text}");
        let waited = of("unisono_wait_seconds_total", ",for=\"1\"");
        assert_eq!(waited.is_some_and(|seconds| seconds > 0.1), rank == 0, "{text}");
        assert_eq!(of("unisono_stragglers_total", ",straggler=\"1\""), Some(1.0), "{text}");
    }
}

fn trace_of_each_rank_has_every_call() {
    let folder = tempfile::tempdir().unwrap();
    run("calls", &[("UNISONO_TRACE", folder.path().to_str().unwrap())]).expect_success();
    let ranks = [0, 1].map(|rank| {
        let bytes = fs::read(folder.path().join(format!("trace-rank-{rank}.json"))).unwrap();
        let trace: Value = serde_json::from_slice(&bytes).unwrap();
        let events = trace["traceEvents"].as_array().unwrap().clone();
        events.into_iter().filter(|event| event["ph"] == "X").collect::<Vec<_>>()
    });
    for (rank, events) in ranks.iter().enumerate() {
        assert!(events.iter().all(|event| event["pid"] == rank));
        let count = |name: &str, algorithm: &str| {
            let is_of = |event: &&Value| event["name"] == name && event["args"]["algorithm"] == algorithm;
            events.iter().filter(is_of).count() as u64
        };
        assert_eq!(count("all-reduce", "recursive-doubling"), SHORT);
        assert_eq!((count("all-reduce", "ring"), count("broadcast", "tree")), (LONG, IN_GROUP));
        assert_eq!(events.iter().filter(|event| event["name"] == "make an array").count() as u64, LONG);
        let long: Vec<_> = events.iter().filter(|event| event["args"]["label"] == "long").collect();
        assert!(long.len() as u64 == LONG && long.iter().all(|call| call["args"]["bytes"] == LONG_BYTES));
        // Events of a thread are disjoint here: no span encloses a call.
        let mut ends = BTreeMap::new();
        let mut sorted = events.clone();
        let ts = |event: &Value| event["ts"].as_f64().unwrap();
        sorted.sort_by(|one, other| ts(one).total_cmp(&ts(other)));
        for event in &sorted {
            let end = ts(event) + event["dur"].as_f64().unwrap();
            let before = ends.insert(event["tid"].as_u64(), end).unwrap_or(f64::NEG_INFINITY);
            // A double has steps of 0.01 µs there.
            assert!(ts(event) > before - 0.05, "{event} begins before {before}");
        }
    }
    // Both ranks have the same calls, and no call ends on a rank before it starts on the other.
    let calls = ranks.map(|events| {
        let calls = events.into_iter().filter(|event| event["cat"] == "call");
        let call = |event: Value| (event["args"]["call"].as_str().unwrap().to_owned(), event);
        calls.map(call).collect::<BTreeMap<_, _>>()
    });
    assert_eq!(calls[0].len() as u64, calls[1].len() as u64);
    assert!(calls[0].len() as u64 > SHORT + LONG + IN_GROUP);
    for (name, call) in &calls[0] {
        let other = &calls[1][name];
        let kind = |call: &Value| ["bytes", "algorithm", "type"].map(|key| call["args"][key].clone());
        assert_eq!((&call["name"], kind(call)), (&other["name"], kind(other)), "{name}");
        if call["name"] == "barrier" || call["name"] == "all-reduce" {
            for (one, other) in [(call, other), (other, call)] {
                let end = one["ts"].as_f64().unwrap() + one["dur"].as_f64().unwrap();
                // The clocks of processes are calibrated with this precision at their start.
                assert!(end + 1000.0 > other["ts"].as_f64().unwrap(), "{name}: {one} {other}");
            }
        }
    }
}

fn failure_is_counted_by_its_code() {
    let folder = tempfile::tempdir().unwrap();
    run("fails", &[("UNISONO_METRICS", folder.path().to_str().unwrap())]).expect_success();
    let text = fs::read_to_string(folder.path().join("unisono-rank-0.prom")).unwrap();
    let failures: f64 =
        samples(&text).iter().filter(|((name, _), _)| name == "unisono_failures_total").map(|(_, n)| n).sum();
    assert_eq!(failures, 1.0, "{text}");
    assert!(text.contains("unisono_failures_total{rank=\"0\",code=\"left\"} 1\n"), "{text}");
}

fn invalid_metrics_destination_is_an_error() {
    for (name, value) in [
        ("UNISONO_METRICS", "localhost:http"),
        ("UNISONO_METRICS", "/dev/null/folder"),
        ("UNISONO_TRACE", "/dev/null/folder"),
    ] {
        let ended = run("calls", &[(name, value)]);
        assert!(!ended.status.success(), "{ended:?}");
        assert!(ended.stderr.contains(name) && ended.stderr.contains(value), "{ended:?}");
    }
}

fn port_in_use_is_an_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ended = run("calls", &[("UNISONO_METRICS", &address)]);
    assert!(!ended.status.success(), "{ended:?}");
    assert!(ended.stderr.contains("UNISONO_METRICS") && ended.stderr.contains(&address), "{ended:?}");
}

/// Returns the queries of the dashboard.
fn queries() -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/grafana.json");
    let dashboard: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("targets").clone());
    targets.map(|target| target["expr"].as_str().expect("a query").to_owned()).collect()
}

/// Returns the names of metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
    words.filter(|word| word.starts_with("unisono_")).map(str::to_owned).collect()
}

fn dashboard_names_existing_metrics() {
    let folder = tempfile::tempdir().unwrap();
    run("calls", &[("UNISONO_METRICS", folder.path().to_str().unwrap())]).expect_success();
    let text = fs::read_to_string(folder.path().join("unisono-rank-0.prom")).unwrap();
    let (known, queries) = (names(&text), queries());
    assert!(queries.len() >= 6, "{queries:?}");
    let named: BTreeSet<_> = queries.iter().flat_map(|query| names(query)).collect();
    assert!(named.is_subset(&known), "{:?}", named.difference(&known).collect::<Vec<_>>());
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/observability.md")).unwrap();
    let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    families.for_each(|family| assert!(page.contains(family), "docs/observability.md lacks {family}"));
}

/// Returns the path of a program that `scripts/setup --tests` unpacks.
fn prometheus(program: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/prometheus/usr/bin").join(program)
}

fn no_prometheus() -> Option<String> {
    let is_here = prometheus("prometheus").exists();
    (!is_here).then(|| "no Prometheus server: `scripts/setup --tests` unpacks Debian's".to_owned())
}

/// Kills the server when the test ends.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// Returns the response to a request.
fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    response.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}

/// Returns the results of a query by rank.
fn query(port: u16, query: &str) -> Vec<(String, f64)> {
    let letter = |byte: u8| {
        if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02x}") }
    };
    let encoded: String = query.bytes().map(letter).collect();
    let Some(body) = get(port, &format!("/api/v1/query?query={encoded}")) else { return Vec::new() };
    let Ok(found) = serde_json::from_str::<Value>(&body) else { return Vec::new() };
    assert_eq!(found["status"], "success", "{query}: {body}");
    let result = found["data"]["result"].as_array().expect("a vector").clone();
    let value = |sample: Value| {
        let value = sample["value"][1].as_str().expect("a number").parse().expect("a number");
        (sample["metric"]["rank"].as_str().unwrap_or_default().to_owned(), value)
    };
    result.into_iter().map(value).collect()
}

fn a_server_finds_the_calls() {
    let folder = tempfile::tempdir().unwrap();
    let (ranks, own, hold) = (launch::free_port(), launch::free_port(), folder.path().join("hold"));
    fs::write(&hold, "").unwrap();
    let settings = [("UNISONO_METRICS", &*format!("127.0.0.1:{ranks}")), (HOLD, hold.to_str().unwrap())];
    let mut command = command("calls", &settings);
    std::thread::scope(|scope| {
        let job = scope.spawn(move || launch::run(&mut command, DEADLINE));
        let config = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs: [{{job_name: unisono, static_configs: \
             [{{targets: ['127.0.0.1:{ranks}', '127.0.0.1:{}']}}]}}]\n",
            ranks + 1
        );
        let file = folder.path().join("prometheus.yml");
        fs::write(&file, config).unwrap();
        let mut server = Command::new(prometheus("prometheus"));
        server.arg(format!("--config.file={}", file.display()));
        server.arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()));
        server.arg(format!("--web.listen-address=127.0.0.1:{own}"));
        let _server = Server(server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let end = Instant::now() + Duration::from_secs(60);
        let long = "unisono_calls_total{operation=\"all-reduce\",algorithm=\"ring\"}";
        let both = ["0", "1"].map(|rank| (rank.to_owned(), LONG as f64));
        let sorted = || {
            let mut found = query(own, long);
            found.sort_by(|one, other| one.0.cmp(&other.0));
            found
        };
        let mut found = sorted();
        while found != both && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(200));
            found = sorted();
        }
        // Rates need two scrapes.
        std::thread::sleep(Duration::from_secs(3));
        let answers: Vec<_> = queries().into_iter().map(|text| (query(own, &text).len(), text)).collect();
        fs::remove_file(&hold).unwrap();
        job.join().unwrap().expect_success();
        assert_eq!(found, both);
        let is_empty = |(results, text): &&(usize, String)| *results == 0 && !text.contains("failures");
        assert_eq!(answers.iter().find(is_empty), None, "every query of the dashboard has results");
    });
}
