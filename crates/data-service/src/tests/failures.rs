//! Tests of failures of servers, tokens and files.

use std::hash::Hasher;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use tokio::runtime::Builder;
use tonic::Code;

use super::*;
use crate::call::{self, MOST_OTHER_BYTES, Method, call};
use crate::message::{DescribeRequest, Description};
use unisono_data::{Cache, OnBadSample, Split, Values};

/// Returns the error of a failed connection.
fn refusal(connected: Result<Dataset, DataError>) -> String {
    connected.unwrap_err().to_string()
}

#[test]
fn every_call_needs_the_token() {
    let fixture = Fixture::new();
    let server = fixture.serve(&Source::Digits);
    let right = fixture.service(&[&server]);
    let wrong = Service {
        token_file: Some(fixture.token("other", "0123456789abcdef0123456789abcdeF")),
        ..right.clone()
    };
    let refused = connect(&wrong, Duration::from_secs(1), &Options::default()).unwrap_err().to_string();
    assert_eq!(refused, format!("data server `{}`: the token is not that of the server", server.address()));
    let none = Service { token_file: None, ..right };
    let refused = load(&Source::Service(none), &Options::default()).unwrap_err().to_string();
    assert!(
        refused.contains("ask for a token: name the file that holds it (--data-token-file)"),
        "{refused}"
    );
}

/// Forwards one connection to an address. After its end, returns the bytes that the client sent.
fn recorded(to: SocketAddr) -> (SocketAddr, JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let recording = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(to).unwrap();
        let (mut answers, mut to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        thread::spawn(move || io::copy(&mut answers, &mut to_client));
        let (mut sent, mut block) = (vec![], [0; 4096]);
        while let Ok(count @ 1..) = client.read(&mut block) {
            sent.extend_from_slice(&block[..count]);
            server.write_all(&block[..count]).unwrap();
        }
        sent
    });
    (address, recording)
}

#[test]
fn a_replayed_connection_is_refused() {
    let fixture = Fixture::new();
    let server = fixture.serve(&Source::Digits);
    let (proxy, recording) = recorded(server.address());
    let service = Service { servers: vec![proxy.to_string()], ..fixture.service(&[&server]) };
    drop(connect(&service, Duration::from_secs(10), &Options::default()).unwrap());
    let sent = recording.join().unwrap();
    let mut again = TcpStream::connect(server.address()).unwrap();
    again.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    again.write_all(&sent).unwrap();
    let mut answer = vec![];
    // The server may reset the connection, since it does not read everything.
    let _ = again.read_to_end(&mut answer);
    // The answer is a greeting, a nonce and the refusal.
    assert!(answer.len() <= 49, "{} bytes", answer.len());
}

/// Forwards one connection to an address. Once it is muted, the client receives nothing more.
fn muting(to: SocketAddr) -> (SocketAddr, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, is_muted) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
    let mutes = Arc::clone(&is_muted);
    thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(to).unwrap();
        let (mut requests, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        thread::spawn(move || {
            let _ = io::copy(&mut requests, &mut to_server);
            let _ = to_server.shutdown(Shutdown::Both);
        });
        let mut block = [0; 4096];
        while let Ok(count @ 1..) = server.read(&mut block) {
            if !mutes.load(Ordering::Relaxed) && client.write_all(&block[..count]).is_err() {
                return;
            }
        }
    });
    (address, is_muted)
}

/// A request with a short deadline.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
struct Urgent {}

impl Method for Urgent {
    const PATH: &'static str = DescribeRequest::PATH;
    const DEADLINE: Duration = Duration::from_millis(300);
    type Answer = Description;
}

#[test]
fn a_server_that_falls_silent_exceeds_the_deadline() {
    let fixture = Fixture::new();
    let server = fixture.serve(&Source::Digits);
    let (proxy, is_muted) = muting(server.address());
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel = call::connect(&proxy.to_string(), &fixture.settings().token).unwrap();
        call(&channel, DescribeRequest {}, MOST_OTHER_BYTES).await.unwrap();
        is_muted.store(true, Ordering::Relaxed);
        let status = call(&channel, Urgent {}, MOST_OTHER_BYTES).await.unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    });
}

#[test]
fn silent_connections_delay_no_client_and_are_closed() {
    let fixture = Fixture::new();
    let server = fixture.serve(&Source::Digits);
    let silent: Vec<_> = (0..300).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    fixture.connect(&[&server]).unwrap();
    for mut stream in silent {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut greeting = vec![];
        assert!(stream.read_to_end(&mut greeting).is_ok(), "it is still open");
    }
}

#[test]
fn a_wait_for_servers_is_reported_and_ends_on_request() {
    static REPORTED: Mutex<Vec<String>> = Mutex::new(vec![]);
    let fixture = Fixture::new();
    let report = Some((|text| REPORTED.lock().unwrap().push(text.to_owned())) as fn(&str));
    let options = Options { cache: Cache { folder: None, report }, ..Options::default() };
    let (stop, nobody) = (options.stop.clone(), "127.0.0.1:1".to_owned());
    let service = Source::Service(Service { servers: vec![nobody.clone()], ..fixture.service(&[]) });
    let load = thread::spawn(move || load(&service, &options));
    wait_until("the wait is reported", || !REPORTED.lock().unwrap().is_empty());
    assert!(!load.is_finished());
    stop.ask();
    wait_until("the wait ends", || load.is_finished());
    assert!(matches!(load.join().unwrap(), Err(DataError::Stopped)));
    let reported = REPORTED.lock().unwrap().concat();
    let expected = format!("waiting for a data server, up to 60 s; `{nobody}`: ");
    assert!(reported.starts_with(&expected) && reported.contains("refused"), "{reported}");
}

#[test]
fn a_wait_for_busy_servers_is_reported_once() {
    static REPORTED: Mutex<Vec<String>> = Mutex::new(vec![]);
    let fixture = Fixture::new();
    let server = start_failing(Duration::from_secs(30), &varied(), fixture.settings()).unwrap();
    let report = Some((|text| REPORTED.lock().unwrap().push(text.to_owned())) as fn(&str));
    let options = Options { cache: Cache { folder: None, report }, ..Options::default() };
    let served = connect(&fixture.service(&[&server]), Duration::from_secs(24), &options).unwrap();
    // One batch is in progress, sixteen requests wait, and one is refused again and again.
    for sample in 0..18 {
        let train = served.train.clone();
        thread::spawn(move || train.batch(&[sample], PASS));
    }
    wait_until("the wait is reported", || !REPORTED.lock().unwrap().is_empty());
    thread::sleep(Duration::from_secs(1));
    let expected = format!(
        "all data servers are busy: waiting for one, up to 240 s; `{}`: it is overloaded: its queue is full",
        server.address()
    );
    assert_eq!(*REPORTED.lock().unwrap(), [expected]);
}

#[test]
fn a_server_of_other_data_is_refused_by_name() {
    let fixture = Fixture::new();
    let source = fixture.images(8, 30);
    let one = fixture.serve(&source);
    let plain = start(&source, &Options::default(), fixture.settings()).unwrap();
    let refused = refusal(fixture.connect(&[&one, &plain]));
    for part in [one.address().to_string(), plain.address().to_string(), "(options: Options {".to_owned()] {
        assert!(refused.contains(&part), "{refused}");
    }
    let more = fixture.images(9, 30);
    let other = fixture.serve(&more);
    let refused = refusal(fixture.connect(&[&one, &other]));
    assert!(refused.contains("it serves other data than `"), "{refused}");
    // A server of other data may not join either.
    let settings = ServerSettings { join: Some(one.address().to_string()), ..fixture.settings() };
    let refused = start(&more, &varied(), settings).unwrap_err().to_string();
    let expected =
        format!("data server `{}`: cannot join it: it serves other data (kind of samples: ", one.address());
    assert!(refused.starts_with(&expected), "{refused}");
}

#[test]
fn the_work_of_a_failed_server_moves_to_the_others() {
    let fixture = Fixture::new();
    let source = fixture.images(24, 200);
    let local = load(&source, &varied()).unwrap();
    let (one, mut two) = (fixture.serve(&source), Some(fixture.serve(&source)));
    let served = fixture.connect(&[&one, two.as_ref().unwrap()]).unwrap();
    let kill = |number| {
        if number == 5 {
            drop(two.take());
        }
    };
    assert_eq!(epoch(&served, kill), epoch(&local, |_| ()));
}

/// Samples that no batch can be made of, which is found after this time.
#[derive(Debug)]
struct Failing(Arc<dyn Split>, Duration);

impl Split for Failing {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn hash(&self, hasher: &mut dyn Hasher) -> Result<(), DataError> {
        self.0.hash(hasher)
    }

    fn gather(&self, _: &[usize], _: Pass) -> Result<(Values, Vec<u32>), DataError> {
        thread::sleep(self.1);
        panic!("no batch")
    }
}

fn start_failing(after: Duration, options: &Options, settings: ServerSettings) -> Result<Server, DataError> {
    let dataset = load(&Source::Digits, options)?;
    let dataset = Dataset { train: Arc::new(Failing(dataset.train.clone(), after)), ..dataset };
    Server::start(dataset, (&Source::Digits, options), settings)
}

#[test]
fn servers_that_answer_but_make_no_batch_end_the_wait() {
    let fixture = Fixture::new();
    // While one of them fails, the pauses of the others end.
    let servers: Vec<_> = (0..4)
        .map(|_| start_failing(Duration::from_millis(300), &varied(), fixture.settings()).unwrap())
        .collect();
    let served = fixture.connect(&servers.iter().collect::<Vec<_>>()).unwrap();
    let request = thread::spawn(move || served.train.batch(&[0], PASS));
    wait_until("the wait ends", || request.is_finished());
    let refused = request.join().unwrap().unwrap_err().to_string();
    assert!(refused.starts_with("no data server has answered for "), "{refused}");
    assert_eq!(refused.matches("a batch could not be made").count(), 4, "{refused}");
}

#[test]
fn a_server_that_cannot_join_ends_despite_a_batch_in_progress() {
    let fixture = Fixture::new();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let settings = ServerSettings {
        listen: address.to_string(),
        join: Some("127.0.0.1:1".to_owned()),
        ..fixture.settings()
    };
    let (options, after) = (varied(), Duration::from_secs(30));
    let stop = options.stop.clone();
    let starting = thread::spawn(move || start_failing(after, &options, settings).map(drop));
    wait_until("it listens", || TcpStream::connect(address).is_ok());
    let service = Service { servers: vec![address.to_string()], ..fixture.service(&[]) };
    let served = connect(&service, Duration::from_secs(1), &Options::default()).unwrap();
    thread::spawn(move || served.train.batch(&[0], PASS));
    thread::sleep(Duration::from_millis(300));
    stop.ask();
    wait_until("it ends", || starting.is_finished());
    assert!(matches!(starting.join().unwrap(), Err(DataError::Stopped)));
}

#[test]
fn a_server_that_restarts_is_used_again_unless_its_data_differ() {
    let fixture = Fixture::new();
    let source = fixture.images(8, 30);
    let server = fixture.serve(&source);
    let listen = server.address().to_string();
    let served = fixture.connect(&[&server]).unwrap();
    drop(server);
    let refused = served.train.batch(&[0], PASS).unwrap_err().to_string();
    assert!(refused.starts_with(&format!("no data server has answered for 1 s; `{listen}`: ")), "{refused}");

    let restart = |source: &Source| {
        let settings = ServerSettings { listen: listen.clone(), ..fixture.settings() };
        let mut server = None;
        wait_until("the port is free again", || {
            server = start(source, &varied(), settings.clone()).ok();
            server.is_some()
        });
        server.unwrap()
    };
    let server = restart(&source);
    assert_eq!(
        served.train.batch(&[4, 2], PASS).unwrap(),
        load(&source, &varied()).unwrap().train.batch(&[4, 2], PASS).unwrap()
    );
    assert_eq!(server.counts().made, 1);
    drop(server);

    let _other = restart(&Source::Digits);
    let refused = served.train.batch(&[0], PASS).unwrap_err().to_string();
    assert!(refused.contains("it now serves other data"), "{refused}");
}

#[test]
fn damaged_files_are_reported_once_no_server_has_intact_ones() {
    let fixture = Fixture::new();
    let source = fixture.images(8, 30);
    let (one, two) = (fixture.serve(&source), fixture.serve(&source));
    let (service, patience) = (fixture.service(&[&one, &two]), Duration::from_secs(60));
    let served = connect(&service, patience, &Options::default()).unwrap();
    let Source::Images(root) = &source else { unreachable!() };
    fs::write(root.join("a/000.png"), "not an image").unwrap();
    let began = Instant::now();
    let refused = batches(&served, 4, |_| ()).unwrap_err().to_string();
    assert!(refused.contains("data server `127.0.0.1:") && refused.contains("a/000.png`"), "{refused}");
    assert!(began.elapsed() < patience / 2, "it is not tried again and again");
}

#[test]
fn damaged_files_are_reported_though_other_servers_are_away() {
    let fixture = Fixture::new();
    let source = fixture.images(8, 30);
    let (one, two) = (fixture.serve(&source), fixture.serve(&source));
    let served = fixture.connect(&[&one, &two]).unwrap();
    drop(two);
    let Source::Images(root) = &source else { unreachable!() };
    fs::write(root.join("a/000.png"), "not an image").unwrap();
    let refused = batches(&served, 4, |_| ()).unwrap_err().to_string();
    assert!(refused.contains(&one.address().to_string()) && refused.contains("a/000.png`"), "{refused}");
}

#[test]
fn batches_without_their_damaged_samples_are_refused() {
    let fixture = Fixture::new();
    let source = fixture.images(8, 30);
    let Source::Images(root) = &source else { unreachable!() };
    fs::write(root.join("a/000.png"), "not an image").unwrap();
    let options = Options { on_bad_sample: OnBadSample::Skip { most: None }, ..varied() };
    let server = start(&source, &options, fixture.settings()).unwrap();
    let served = fixture.connect(&[&server]).unwrap();
    let refused = batches(&served, 4, |_| ()).unwrap_err().to_string();
    let expected = "1 of 4 samples are damaged and left out";
    assert!(refused.contains("data server `127.0.0.1:") && refused.contains(expected), "{refused}");
}

#[test]
fn invalid_requests_are_refused() {
    let fixture = Fixture::new();
    let server = fixture.serve(&Source::Digits);
    let served = fixture.connect(&[&server]).unwrap();
    let too_many = vec![0; 2_000_000];
    let refused = served.train.batch(&too_many, PASS).unwrap_err().to_string();
    assert!(
        refused.starts_with("a batch of 2000000 samples takes a request of ")
            && refused.contains(" bytes and an answer of 6")
            && refused.contains("choose a smaller batch"),
        "{refused}"
    );
    let beyond = catch_unwind(AssertUnwindSafe(|| served.test.batch(&[30], PASS)));
    assert!(beyond.is_err(), "as for samples that are here");
}

#[test]
fn addresses_in_use_and_unknown_ones_are_reported() {
    let fixture = Fixture::new();
    let server = fixture.serve(&Source::Digits);
    let listen = server.address().to_string();
    let settings = ServerSettings { listen: listen.clone(), ..fixture.settings() };
    let refused = start(&Source::Digits, &varied(), settings).unwrap_err().to_string();
    assert!(refused.starts_with(&format!("data server `{listen}`: cannot listen there: ")), "{refused}");
    let service = Service { servers: vec!["127.0.0.1:1".to_owned()], ..fixture.service(&[]) };
    let refused = connect(&service, Duration::from_millis(300), &Options::default()).unwrap_err().to_string();
    assert!(refused.starts_with("no data server has answered for 0 s; `127.0.0.1:1`: "), "{refused}");
    assert!(refused.contains("refused"), "{refused}");
    let settings = ServerSettings { join: Some("host".to_owned()), ..fixture.settings() };
    let refused = start(&Source::Digits, &varied(), settings).unwrap_err().to_string();
    assert_eq!(refused, "`host` is not the address of a data server: expected HOST:PORT");
    let settings = ServerSettings { threads: 0, ..fixture.settings() };
    let refused = start(&Source::Digits, &varied(), settings).unwrap_err().to_string();
    assert_eq!(refused, "a data server has 0 threads: expected at least 1");
}
