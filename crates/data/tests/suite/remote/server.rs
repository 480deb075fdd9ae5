//! A server of objects, over HTTP and with the list requests of S3.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The maximum silence of a connection.
const PATIENCE: Duration = Duration::from_secs(20);
/// The maximum number of objects in one response to a list request.
const PAGE: usize = 3;

/// The objects of the server, its faults, and the requests it received.
#[derive(Default)]
pub(crate) struct State {
    /// The objects by path: `bucket/key`, or the part after the host.
    pub(crate) objects: BTreeMap<String, Vec<u8>>,
    /// The number of responses to end after half of an object.
    pub(crate) cuts: usize,
    /// Set to block in the middle of each object.
    pub(crate) waits: bool,
    /// The size to report for objects.
    pub(crate) claims: Option<u64>,
    /// The objects to replace after they were queried.
    pub(crate) changes: Vec<(String, Vec<u8>)>,
    /// Set to refuse every request.
    pub(crate) forbids: bool,
    /// The paths of the requested objects, in order.
    pub(crate) gets: Vec<String>,
}

/// A running server; ends when it is dropped.
pub(crate) struct Server {
    pub(crate) port: u16,
    state: Arc<Mutex<State>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn new(objects: &[(&str, &[u8])]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let objects = objects.iter().map(|&(path, bytes)| (path.to_owned(), bytes.to_vec())).collect();
        let state = Arc::new(Mutex::new(State { objects, ..State::default() }));
        let ends = Arc::new(AtomicBool::new(false));
        let (shared, is_over) = (Arc::clone(&state), Arc::clone(&ends));
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let (state, is_over) = (Arc::clone(&shared), Arc::clone(&is_over));
                // The client may be gone.
                thread::spawn(move || answer(stream?, &state, &is_over));
            }
        });
        Self { port, state, ends, thread: Some(thread) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Returns the URL of an object.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A request: its method, its path, its query and its headers in lower case.
struct Request {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
}

fn read(stream: &TcpStream) -> std::io::Result<Request> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut headers = BTreeMap::new();
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let plain = |text: &str| text.replace("%2F", "/").replace("%20", " ");
    let query = query.split('&').filter_map(|pair| pair.split_once('='));
    let query = query.map(|(name, value)| (name.to_owned(), plain(&value.replace('+', " ")))).collect();
    Ok(Request { method, path: plain(path).trim_start_matches('/').to_owned(), query, headers })
}

fn answer(mut stream: TcpStream, state: &Mutex<State>, is_over: &AtomicBool) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = read(&stream)?;
    let found = {
        let mut state = state.lock().unwrap();
        if state.forbids {
            return respond(&mut stream, "403 Forbidden", &[], b"<Error><Code>AccessDenied</Code></Error>");
        }
        if request.query.contains_key("list-type") {
            let page = list(&state, &request);
            return respond(&mut stream, "200 OK", &[], page.as_bytes());
        }
        let found = state.objects.get(&request.path).cloned();
        if request.method == "HEAD" {
            let changes = std::mem::take(&mut state.changes);
            state.objects.extend(changes);
        } else {
            state.gets.push(request.path.clone());
        }
        found
    };
    let Some(object) = found else { return respond(&mut stream, "404 Not Found", &[], b"") };
    let etag = etag(&object);
    let size = state.lock().unwrap().claims.unwrap_or(object.len() as u64);
    let headers =
        |length: u64| format!("Content-Length: {length}\r\nETag: {etag}\r\nLast-Modified: {DATE}\r\n");
    if request.method == "HEAD" {
        return write!(stream, "HTTP/1.1 200 OK\r\n{}Connection: close\r\n\r\n", headers(size));
    }
    if request.headers.get("if-match").is_some_and(|wanted| *wanted != etag) {
        return respond(&mut stream, "412 Precondition Failed", &[], b"");
    }
    // `bytes=FROM-`, as in a retry after a cut.
    let range = request.headers.get("range").and_then(|range| range.strip_prefix("bytes="));
    let from = range.and_then(|range| range.split('-').next()?.parse().ok()).unwrap_or(0);
    let (status, more) = match range {
        Some(_) => {
            let last = object.len() - 1;
            ("206 Partial Content", format!("Content-Range: bytes {from}-{last}/{}\r\n", object.len()))
        }
        None => ("200 OK", String::new()),
    };
    let body = &object[from..];
    let headers = headers(body.len() as u64);
    write!(stream, "HTTP/1.1 {status}\r\n{headers}{more}Connection: close\r\n\r\n")?;
    stream.write_all(&body[..body.len() / 2])?;
    while state.lock().unwrap().waits && !is_over.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(5));
    }
    let is_cut = {
        let mut state = state.lock().unwrap();
        let is_cut = state.cuts > 0;
        state.cuts -= usize::from(is_cut);
        is_cut
    };
    if is_cut {
        return stream.shutdown(Shutdown::Both);
    }
    stream.write_all(&body[body.len() / 2..])
}

const DATE: &str = "Thu, 01 Jan 2026 00:00:00 GMT";

/// Returns a tag that depends only on the content.
fn etag(object: &[u8]) -> String {
    let sum =
        object.iter().fold(object.len() as u64, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    format!("\"{sum:x}\"")
}

fn respond(stream: &mut TcpStream, status: &str, headers: &[&str], body: &[u8]) -> std::io::Result<()> {
    let headers = headers.concat();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{headers}Connection: close\r\n\r\n",
        body.len()
    )?;
    stream.write_all(body)
}

/// Returns a page of the objects of a bucket, in the form of `ListObjectsV2`.
fn list(state: &State, request: &Request) -> String {
    let bucket = request.path.trim_end_matches('/');
    let of = |name| request.query.get(name).map_or("", String::as_str);
    let (prefix, after) = (of("prefix"), of("continuation-token"));
    let keys = state
        .objects
        .iter()
        .filter_map(|(path, object)| Some((path.strip_prefix(bucket)?.strip_prefix('/')?, object)));
    let keys: Vec<_> = keys.filter(|(key, _)| key.starts_with(prefix) && *key > after).collect();
    let entry = |(key, object): &(&str, &Vec<u8>)| {
        let (etag, size) = (etag(object).replace('"', "&quot;"), object.len());
        format!(
            "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>{etag}</ETag><Size>{size}</Size>\
             </Contents>"
        )
    };
    let page: String = keys.iter().take(PAGE).map(entry).collect();
    let next = match keys.len() > PAGE {
        true => format!("<NextContinuationToken>{}</NextContinuationToken>", keys[PAGE - 1].0),
        false => String::new(),
    };
    format!(
        "<ListBucketResult><Name>{bucket}</Name><IsTruncated>{}</IsTruncated><KeyCount>1</KeyCount>{next}{page}</ListBucketResult>",
        keys.len() > PAGE
    )
}
