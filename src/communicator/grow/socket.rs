//! Connections of processes that join with rank 0, over a Unix socket: who may connect, and frames of bytes.
//!
//! The kernel tells each side the user of the other. Within a user, the secret of the job tells its processes from others.

use std::fs;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;

use crate::error::{Error, Result};

/// How long a connection may take to say that it joins.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// The most connections that have not: beyond it, the oldest are closed.
const MOST_GUESTS: usize = 64;
/// The pause between looks at connections.
const PAUSE: Duration = Duration::from_millis(2);
/// The most bytes of a frame.
const MOST_BYTES: usize = 64 << 20;
const MAGIC: [u8; 8] = *b"unisonoJ";

/// A connection between rank 0 and a process that joins.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    timeout: Duration,
}

impl Connection {
    /// Connects to rank 0, as soon as it listens at this path.
    pub(super) fn to(path: &Path, secret: &[u8], timeout: Duration) -> Result<Self> {
        let began = Instant::now();
        let failed = |cause: io::Error| Error::Launch(format!("cannot join at {}: {cause}", path.display()));
        let stream = loop {
            match UnixStream::connect(path) {
                Ok(stream) => break stream,
                Err(error)
                    if began.elapsed() < timeout
                        && matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {}
                Err(error) => return Err(failed(error)),
            }
            idle()?;
            std::thread::sleep(PAUSE);
        };
        if !is_of_this_user(&stream) {
            return Err(Error::Launch(format!("another user listens at {}", path.display())));
        }
        let mut connection = Self::new(stream, timeout).map_err(failed)?;
        connection.send(&[&MAGIC, secret].concat()).map_err(failed)?;
        Ok(connection)
    }

    fn new(stream: UnixStream, timeout: Duration) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, timeout })
    }

    /// Sends a frame.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let frame = [&(bytes.len() as u64).to_le_bytes(), bytes].concat();
        let (mut rest, mut moved) = (&frame[..], Instant::now());
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => (rest, moved) = (&rest[written..], Instant::now()),
                Err(error) => self.pause(error, moved)?,
            }
        }
        Ok(())
    }

    /// Receives a frame.
    pub(super) fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 8];
        self.fill(&mut length)?;
        let length = u64::from_le_bytes(length) as usize;
        if length > MOST_BYTES {
            return Err(io::Error::new(ErrorKind::InvalidData, "it sent what is no message"));
        }
        let mut bytes = vec![0; length];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, mut bytes: &mut [u8]) -> io::Result<()> {
        let mut moved = Instant::now();
        while !bytes.is_empty() {
            match self.stream.read(bytes) {
                Ok(0) => {
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, "it has closed the connection"));
                }
                Ok(read) => (bytes, moved) = (&mut bytes[read..], Instant::now()),
                Err(error) => self.pause(error, moved)?,
            }
        }
        Ok(())
    }

    /// Pauses before another try, unless the other side has been silent for too long.
    fn pause(&self, error: io::Error, moved: Instant) -> io::Result<()> {
        match error.kind() {
            ErrorKind::Interrupted => return Ok(()),
            ErrorKind::WouldBlock if moved.elapsed() < self.timeout => {}
            ErrorKind::WouldBlock => {
                return Err(io::Error::new(
                    ErrorKind::TimedOut,
                    format!("it was silent for {:?}", self.timeout),
                ));
            }
            _ => return Err(error),
        }
        idle().map_err(io::Error::other)?;
        std::thread::sleep(PAUSE);
        Ok(())
    }
}

/// Runs what the program wants to run while it waits.
fn idle() -> Result<()> {
    crate::while_waiting::run().map_err(Error::Launch)
}

fn is_of_this_user(stream: &UnixStream) -> bool {
    socket_peercred(stream).is_ok_and(|other| other.uid == rustix::process::geteuid())
}

/// Listens at a path, which it removes when it is dropped.
#[derive(Debug)]
pub(super) struct JoinListener {
    listener: UnixListener,
    path: PathBuf,
}

impl JoinListener {
    pub(super) fn at(path: &Path) -> io::Result<Self> {
        let listener = match UnixListener::bind(path) {
            // Left behind by a process that was killed, if no process listens.
            Err(error) if error.kind() == ErrorKind::AddrInUse && UnixStream::connect(path).is_err() => {
                fs::remove_file(path)?;
                UnixListener::bind(path)
            }
            bound => bound,
        }?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Waits for this many processes of this user that know the secret.
    pub(super) fn wait_for(
        &self,
        processes: usize,
        secret: &[u8],
        timeout: Duration,
    ) -> Result<Vec<Connection>> {
        let began = Instant::now();
        let (mut guests, mut joining) = (Vec::new(), Vec::new());
        let expected = [&MAGIC, secret].concat();
        loop {
            while let Ok((stream, _)) = self.listener.accept() {
                guests.extend(Guest::new(stream));
            }
            guests.drain(..guests.len().saturating_sub(MOST_GUESTS));
            joining.retain(|guest: &Guest| guest.is_connected());
            for guest in std::mem::take(&mut guests) {
                match guest.identified(&expected) {
                    Identified::NotYet(guest) => guests.push(guest),
                    Identified::As(guest) if joining.len() < processes => joining.push(guest),
                    Identified::As(_) | Identified::Stranger => {}
                }
            }
            if joining.len() == processes {
                let connection = |guest: Guest| Connection { stream: guest.stream, timeout };
                return Ok(joining.into_iter().map(connection).collect());
            }
            if began.elapsed() > timeout {
                return Err(Error::Launch(format!(
                    "{} of {processes} processes have joined at {} within {timeout:?}",
                    joining.len(),
                    self.path.display()
                )));
            }
            idle()?;
            std::thread::sleep(PAUSE);
        }
    }
}

impl Drop for JoinListener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A connection that may be of a process that joins.
#[derive(Debug)]
struct Guest {
    stream: UnixStream,
    since: Instant,
    received: Vec<u8>,
}

enum Identified {
    As(Guest),
    NotYet(Guest),
    Stranger,
}

impl Guest {
    fn new(stream: UnixStream) -> Option<Self> {
        let is_served = is_of_this_user(&stream) && stream.set_nonblocking(true).is_ok();
        is_served.then(|| Self { stream, since: Instant::now(), received: Vec::new() })
    }

    /// Reads what has arrived, and compares it with the frame of a process that joins.
    fn identified(mut self, expected: &[u8]) -> Identified {
        let frame = [&(expected.len() as u64).to_le_bytes(), expected].concat();
        let mut rest = vec![0; frame.len() - self.received.len()];
        match self.stream.read(&mut rest) {
            Ok(read) if read > 0 => self.received.extend_from_slice(&rest[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            _ => return Identified::Stranger,
        }
        // Only once all of it is here: a stranger does not learn which byte is wrong.
        match self.received.len() == frame.len() {
            true if self.received == frame => Identified::As(self),
            false if self.since.elapsed() < HELLO_TIMEOUT => Identified::NotYet(self),
            _ => Identified::Stranger,
        }
    }

    /// Whether the process has not gone: it sends nothing before it is told its rank.
    fn is_connected(&self) -> bool {
        let read = (&self.stream).read(&mut [0]);
        read.is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn strangers_are_not_admitted_and_delay_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("world");
        let listener = JoinListener::at(&path).unwrap();
        let silent: Vec<_> = (0..2 * MOST_GUESTS).map(|_| UnixStream::connect(&path).unwrap()).collect();
        let wrong = Connection::to(&path, b"another secret", SOON).unwrap();
        let mut garbage = UnixStream::connect(&path).unwrap();
        garbage.write_all(&[7; 1000]).unwrap();
        let began = Instant::now();
        std::thread::scope(|scope| {
            let joins = scope.spawn(|| Connection::to(&path, b"secret", SOON).unwrap().receive());
            let mut admitted = listener.wait_for(1, b"secret", SOON).unwrap();
            admitted[0].send(b"welcome").unwrap();
            assert_eq!(joins.join().unwrap().unwrap(), b"welcome");
        });
        assert!(began.elapsed() < HELLO_TIMEOUT, "{:?}", began.elapsed());
        drop((silent, wrong, garbage, listener));
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_that_was_left_behind_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("world");
        drop(UnixListener::bind(&path).unwrap());
        let listener = JoinListener::at(&path).unwrap();
        assert!(JoinListener::at(&path).is_err(), "somebody listens");
        let error = listener.wait_for(2, b"", Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().starts_with("0 of 2 processes have joined at "), "{error}");
    }
}
