//! Joining a run that goes on: a worker connects to a port of each server, on the same machine.

use std::fs;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::mem;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use unisono::{Error, Rank, Result};

use super::meeting::begin;
use super::message::{CLIENT, Link};
use unisono_train::TrainError;

/// The time that one side waits for the other while a link is set up.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest time that a connection may take to identify itself. A worker does so at once.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The most connections that have not identified themselves. A further one replaces the oldest.
const MOST_PENDING: usize = 64;
/// The sleep between attempts to find a server.
const NAP: Duration = Duration::from_millis(20);
/// The most bytes of one side in a round of the bootstrap.
const LONGEST: u64 = 1 << 20;

/// The port of a server at which workers join, and the file that names it. The folder is the launcher's, and private to this user.
#[derive(Debug)]
pub(super) struct JoinListener {
    listener: TcpListener,
    /// Sent by a worker that joins: other users of the machine can reach the port.
    token: u64,
    /// The ranks that may join.
    workers: Range<Rank>,
    file: PathBuf,
    pending: Vec<Pending>,
}

/// A connection that has not identified itself.
#[derive(Debug)]
struct Pending {
    stream: TcpStream,
    since: Instant,
    handshake: [u8; HANDSHAKE_BYTES],
    received: usize,
}

/// The token and the rank of a worker.
const HANDSHAKE_BYTES: usize = 2 * size_of::<u64>();

impl JoinListener {
    /// Opens the port of a server.
    pub(super) fn open(folder: &Path, server: Rank, workers: Range<Rank>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let (token, file) = (rand::random(), file(folder, server));
        let partial = file.with_extension("partial");
        fs::write(&partial, format!("{} {token}", listener.local_addr()?.port()))?;
        fs::rename(&partial, &file)?;
        Ok(Self { listener, token, workers, file, pending: Vec::new() })
    }

    /// Returns the workers that have identified themselves since the last call. Never blocks: a connection that sends nothing, or
    /// something else, delays no other.
    pub(super) fn poll(&mut self, now: Instant) -> Vec<(Rank, TcpStream)> {
        // Bounded, so that a flood of connections cannot keep this call from returning.
        for (stream, _) in (0..MOST_PENDING).map_while(|_| self.listener.accept().ok()) {
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.pending.len() == MOST_PENDING {
                self.pending.remove(0);
            }
            self.pending.push(Pending { stream, since: now, handshake: [0; HANDSHAKE_BYTES], received: 0 });
        }
        let mut identified = Vec::new();
        for mut pending in mem::take(&mut self.pending) {
            match pending.receive() {
                Ok(Some([token, rank])) => {
                    let rank = rank as Rank;
                    let is_worker = token == self.token && self.workers.contains(&rank);
                    if is_worker && pending.stream.set_nonblocking(false).is_ok() {
                        identified.push((rank, pending.stream));
                    }
                }
                Ok(None) if now.duration_since(pending.since) < HANDSHAKE_TIMEOUT => {
                    self.pending.push(pending);
                }
                _ => {}
            }
        }
        identified
    }
}

impl Drop for JoinListener {
    fn drop(&mut self) {
        // The launcher removes what is left in its folder.
        let _ = fs::remove_file(&self.file);
    }
}

impl Pending {
    /// Returns the handshake, once all of it has arrived.
    fn receive(&mut self) -> io::Result<Option<[u64; 2]>> {
        while self.received < HANDSHAKE_BYTES {
            match self.stream.read(&mut self.handshake[self.received..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.received += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Some(bytemuck::cast(self.handshake)))
    }
}

/// Joins these servers as the worker of this rank.
///
/// # Errors
/// [`TrainError::ServerLost`] if one does not answer.
pub(super) fn join(folder: &Path, servers: usize, rank: Rank) -> std::result::Result<Vec<Link>, TrainError> {
    let lost = |server, error: io::Error| TrainError::ServerLost {
        server,
        error: Error::Launch(format!("a worker that was started again cannot join: {error}")),
    };
    let joined = |server| {
        let stream = connect(&file(folder, server), rank).map_err(|error| lost(server, error))?;
        link(CLIENT, stream).map_err(|error| TrainError::ServerLost { server, error })
    };
    (0..servers).map(joined).collect()
}

fn file(folder: &Path, server: Rank) -> PathBuf {
    folder.join(format!("server-{server}"))
}

/// Connects to the server that this file names, and sends the handshake.
fn connect(file: &Path, rank: Rank) -> io::Result<TcpStream> {
    let began = Instant::now();
    let (port, token) = loop {
        let text = fs::read_to_string(file);
        let numbers = text.as_ref().ok().and_then(|text| text.split_once(' '));
        match numbers.and_then(|(port, token)| Some((port.parse().ok()?, token.parse::<u64>().ok()?))) {
            Some(numbers) => break numbers,
            None if began.elapsed() > PATIENCE => {
                return Err(io::Error::new(
                    ErrorKind::NotFound,
                    format!("no `{}` that names its port", file.display()),
                ));
            }
            None => thread::sleep(NAP),
        }
    };
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.write_all(bytemuck::cast_slice(&[token, rank as u64]))?;
    Ok(stream)
}

/// Sets up the link of the two sides of a stream, both on this machine. Blocks until the other side does the same.
///
/// # Errors
/// If the other side is lost, or silent for [`PATIENCE`].
pub(super) fn link(place: Rank, stream: TcpStream) -> Result<Link> {
    let unset = |error| Error::Launch(format!("a stream cannot be set up: {error}"));
    stream.set_nodelay(true).map_err(unset)?;
    stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
        .map_err(unset)?;
    let lost = |error| Error::Launch(format!("the other side is lost while the link begins: {error}"));
    begin(place, &[2], move |own| exchange(&stream, own).map_err(lost))
}

/// Returns the bytes of the other side of a stream.
fn exchange(mut stream: &TcpStream, own: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_all(&[&(own.len() as u64).to_ne_bytes(), own].concat())?;
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    let length = u64::from_ne_bytes(length);
    if length > LONGEST {
        return Err(io::Error::other(format!("it sends {length} bytes at once")));
    }
    let mut theirs = vec![0; length as usize];
    stream.read_exact(&mut theirs)?;
    Ok(theirs)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKERS: Range<Rank> = 1..4;
    const SOON: Duration = Duration::from_secs(5);

    fn open(folder: &Path) -> JoinListener {
        JoinListener::open(folder, 0, WORKERS).unwrap()
    }

    fn silent(listener: &JoinListener) -> TcpStream {
        TcpStream::connect(listener.listener.local_addr().unwrap()).unwrap()
    }

    /// Polls until a worker has identified itself.
    fn joined(listener: &mut JoinListener) -> Rank {
        let began = Instant::now();
        loop {
            if let Some((rank, _)) = listener.poll(Instant::now()).pop() {
                return rank;
            }
            assert!(began.elapsed() < SOON, "no worker has joined");
            thread::yield_now();
        }
    }

    #[test]
    fn silent_connections_do_not_delay_a_worker() {
        let folder = tempfile::tempdir().unwrap();
        let mut listener = open(folder.path());
        // Some say nothing, one stops in the middle of its handshake.
        let mut strangers: Vec<_> = (0..3 * MOST_PENDING / 2).map(|_| silent(&listener)).collect();
        strangers[0].write_all(&[1; HANDSHAKE_BYTES - 1]).unwrap();
        let _stream = connect(&file(folder.path(), 0), 2).unwrap();
        assert_eq!(joined(&mut listener), 2);
        assert!(listener.pending.len() <= MOST_PENDING);
    }

    #[test]
    fn a_connection_that_does_not_identify_itself_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let mut listener = open(folder.path());
        let mut silent = silent(&listener);
        let now = Instant::now();
        while listener.pending.is_empty() {
            assert!(listener.poll(now).is_empty() && now.elapsed() < SOON);
        }
        assert!(listener.poll(now + HANDSHAKE_TIMEOUT).is_empty() && listener.pending.is_empty());
        silent.set_read_timeout(Some(SOON)).unwrap();
        assert_eq!(silent.read(&mut [0]).unwrap(), 0, "it is still open");
    }

    #[test]
    fn a_wrong_token_and_the_rank_of_a_server_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut listener = open(folder.path());
        let mut wrong = silent(&listener);
        wrong.write_all(bytemuck::cast_slice(&[listener.token ^ 1, 2])).unwrap();
        let of_server = connect(&file(folder.path(), 0), 0).unwrap();
        let _worker = connect(&file(folder.path(), 0), 3).unwrap();
        assert_eq!(joined(&mut listener), 3);
        for mut refused in [wrong, of_server] {
            refused.set_read_timeout(Some(SOON)).unwrap();
            assert!(refused.read(&mut [0]).is_ok_and(|count| count == 0), "it is still open");
        }
    }
}
