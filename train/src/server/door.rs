//! How a worker joins a run that goes on: at a port of each server, on the same machine.

use std::fs;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use unisono::{Bootstrap, Error, Rank, Result, Topology, Unisono};

use super::message::{CLIENT, Link, SERVER};
use crate::error::TrainError;

/// How long one side waits for a word of the other.
const PATIENCE: Duration = Duration::from_secs(20);
/// The sleep between attempts to find a server.
const NAP: Duration = Duration::from_millis(20);
/// The most bytes of one side in a round of the bootstrap.
const LONGEST: u64 = 1 << 20;

/// A server's door: a port, and the file that names it. The folder is the launcher's, and private to this user.
#[derive(Debug)]
pub(super) struct Door {
    listener: TcpListener,
    /// Who joins must know it: other users of the machine reach the port too.
    token: u64,
    file: PathBuf,
}

impl Door {
    /// Opens the door of a server.
    pub(super) fn open(folder: &Path, server: Rank) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let (token, file) = (rand::random(), file(folder, server));
        let partial = file.with_extension("partial");
        fs::write(&partial, format!("{} {token}", listener.local_addr()?.port()))?;
        fs::rename(&partial, &file)?;
        Ok(Self { listener, token, file })
    }

    /// The worker that has come to join, if one has: its rank, and the link with it.
    pub(super) fn admit(&self) -> Option<(Rank, Link)> {
        let (mut stream, _) = self.listener.accept().ok()?;
        // One that says nothing, or something else, is not of this run.
        let rank = hello(&mut stream, self.token).ok()?;
        Some((rank, link(SERVER, stream).ok()?))
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // The launcher removes what is left in its folder.
        let _ = fs::remove_file(&self.file);
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
        let stream = knock(&file(folder, server), rank).map_err(|error| lost(server, error))?;
        link(CLIENT, stream).map_err(|error| TrainError::ServerLost { server, error })
    };
    (0..servers).map(joined).collect()
}

fn file(folder: &Path, server: Rank) -> PathBuf {
    folder.join(format!("server-{server}"))
}

/// Connects with the server of this file, and says who is there.
fn knock(file: &Path, rank: Rank) -> io::Result<TcpStream> {
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

/// The rank of who has connected, if it knows the token.
fn hello(stream: &mut TcpStream, expected: u64) -> io::Result<Rank> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut words = [0_u64; 2];
    stream.read_exact(bytemuck::cast_slice_mut(&mut words))?;
    let [token, rank] = words;
    if token == expected { Ok(rank as Rank) } else { Err(ErrorKind::PermissionDenied.into()) }
}

/// The link of the two sides of a stream, both on this machine.
fn link(place: Rank, stream: TcpStream) -> Result<Link> {
    let unset = |error| Error::Launch(format!("a stream cannot be set up: {error}"));
    stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(PATIENCE))).map_err(unset)?;
    let bootstrap = OverStream { place, stream };
    let nodes = Topology::from_node_sizes(&[2]);
    Ok(Link { comm: Unisono::builder().bootstrap(bootstrap).nodes(nodes).processes()? })
}

/// A bootstrap over the stream between two ranks.
#[derive(Debug)]
struct OverStream {
    place: Rank,
    stream: TcpStream,
}

impl OverStream {
    fn exchange(&mut self, own: &[u8]) -> io::Result<Vec<u8>> {
        self.stream.write_all(&[&(own.len() as u64).to_ne_bytes(), own].concat())?;
        let mut length = [0; 8];
        self.stream.read_exact(&mut length)?;
        let length = u64::from_ne_bytes(length);
        if length > LONGEST {
            return Err(io::Error::other(format!("it sends {length} bytes at once")));
        }
        let mut theirs = vec![0; length as usize];
        self.stream.read_exact(&mut theirs)?;
        Ok(theirs)
    }
}

impl Bootstrap for OverStream {
    fn rank(&self) -> Rank {
        self.place
    }

    fn ranks(&self) -> usize {
        2
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let lost = |error| Error::Launch(format!("the other side is lost while the link begins: {error}"));
        let mut all = vec![self.exchange(own).map_err(lost)?];
        all.insert(self.place, own.to_vec());
        Ok(all)
    }
}
