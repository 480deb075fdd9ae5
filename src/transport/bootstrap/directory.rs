//! A folder in which ranks find rank 0. There it publishes where it listens, and they meet as at an address.
//!
//! Rank 0 listens at a Unix socket in the folder, which ranks of its machine reach from every network namespace. It opens TCP ports only if
//! a rank of another machine requests them by a file, or if the file system has no sockets. The file of a process that has ended is
//! ignored, since a killed job does not remove it.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::Peer;
use super::arrivals::{Arrivals, WRONG_SECRET};
use super::rendezvous::{Joining, Rendezvous, first};
use super::unix::{bind, connected_at};
use crate::config::Interfaces;
use crate::control::{Claim, Hidden};
use crate::error::{Error, Result};
use crate::system::{self, Process, replace_file};

/// The file of rank 0.
const PUBLISHED: &str = "rank-0";
const SOCKET: &str = "rank-0.socket";
/// The file by which a rank of another machine requests TCP ports.
const REQUEST: &str = "tcp-is-needed";

/// The content of rank 0's file.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    process: Process,
    /// The secret of this world, which only ranks that can read the file know.
    secret: Hidden<[u64; 2]>,
    /// The TCP addresses of rank 0, if it has any.
    addresses: Vec<SocketAddr>,
}

impl Rendezvous {
    /// Connects the ranks through a folder, which is created if necessary. All ranks of a world use the same folder, and no other
    /// world at the same time.
    ///
    /// # Errors
    /// [`Error::Launch`] if the folder is not usable, or ranks do not arrive or disagree; [`Error::Aborted`] if a rank ends.
    pub(crate) fn in_folder(folder: &Path, joining: Joining<'_>) -> Result<Self> {
        fs::create_dir_all(folder).map_err(|error| cannot_use(folder, &error))?;
        meet(folder, false, joining)
    }

    /// Connects the ranks of a job of this user, through a private folder of that name.
    ///
    /// # Errors
    /// As [`Self::in_folder`], and if the folder may be readable by others.
    pub(crate) fn of_job(temporary: &Path, job: &str, joining: Joining<'_>) -> Result<Self> {
        let of_user = system::private_folder(temporary).map_err(|error| cannot_use(temporary, &error))?;
        let folder = of_user.join(job);
        remove_left(&of_user, &folder);
        meet(&folder, true, joining)
    }
}

fn meet(folder: &Path, is_own: bool, joining: Joining<'_>) -> Result<Rendezvous> {
    let (rank, ranks) = joining.world;
    let question = format!(
        "was each of the {ranks} processes started, with a RANK of its own, in the same session or with the same UNISONO_BOOTSTRAP_DIR \
         (here {})?",
        folder.display()
    );
    if rank != 0 {
        return Rendezvous::reach(joining, |claim| {
            let found = find(folder, system::machine(), claim, joining.timeout)?;
            Ok(found.map_err(|why| question.clone() + &why))
        });
    }
    check_alone(folder)?;
    let cannot = |error| cannot_use(folder, &error);
    let (mut arrivals, mut entry) = Entry::publish(folder).map_err(cannot)?;
    let met = Rendezvous::admit(&mut arrivals, joining, &question, |arrivals| {
        if entry.addresses.is_empty() && folder.join(REQUEST).exists() {
            entry.listen(folder, arrivals).map_err(cannot)?;
        }
        Ok(())
    });
    // Before the sockets are closed, so that another job does not publish its own in between.
    remove_files(folder);
    if is_own {
        let _ = fs::remove_dir(folder);
    }
    met
}

impl Entry {
    /// Listens in a folder, and publishes it.
    fn publish(folder: &Path) -> io::Result<(Arrivals, Self)> {
        fs::create_dir_all(folder)?;
        let (_open, path) = socket(folder)?;
        let socket = match bind(&path) {
            Ok(socket) => Some(socket),
            Err(error) if error.kind() == ErrorKind::AddrInUse => return Err(error),
            Err(_) => None,
        };
        // A killed job may have left it.
        let _ = fs::remove_file(folder.join(REQUEST));
        let (has_socket, secret) = (socket.is_some(), Hidden(system::nonce()));
        let mut entry = Self { process: Process::own(), secret, addresses: Vec::new() };
        let mut arrivals = Arrivals::new(socket, bytemuck::bytes_of(&secret.0))?;
        if has_socket { entry.write(folder) } else { entry.listen(folder, &mut arrivals) }?;
        Ok((arrivals, entry))
    }

    /// Listens over TCP too.
    fn listen(&mut self, folder: &Path, arrivals: &mut Arrivals) -> io::Result<()> {
        let (listeners, addresses) = Interfaces::from_environment().listen()?;
        arrivals.listeners.extend(listeners.into_iter().map(OwnedFd::from));
        self.addresses = addresses;
        self.write(folder)
    }

    fn write(&self, folder: &Path) -> io::Result<()> {
        let entry = serde_json::to_vec(self).expect("JSON can represent every entry");
        replace_file(&folder.join(PUBLISHED), &entry, 0o600)
    }
}

/// Checks that no other process starts a world in a folder.
fn check_alone(folder: &Path) -> Result<()> {
    let own = Process::own();
    let Ok(Entry { process, .. }) = read(folder) else { return Ok(()) };
    if process == own || !process.lives() {
        return Ok(());
    }
    let is_near = process.machine == own.machine;
    let killed = if is_near { "" } else { "; if it was killed on another machine, remove the files there" };
    Err(Error::Launch(format!(
        "process {} is rank 0 of a world that starts in {}: two jobs at once need a UNISONO_BOOTSTRAP_DIR each{killed}",
        process.id,
        folder.display()
    )))
}

/// Connects to rank 0. Returns the reason, after the question for missing ranks, if that fails.
fn find(folder: &Path, machine: &str, claim: Claim, timeout: Duration) -> Result<Result<Peer, String>> {
    let Entry { process, secret, mut addresses } = match read(folder) {
        Ok(entry) => entry,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Err(String::new())),
        Err(error) => return Ok(Err(format!("; the file of rank 0 is not readable: {error}"))),
    };
    let is_near = process.machine == machine;
    system::sort_by_nearness(&mut addresses);
    let why = if !process.lives() {
        "has ended".to_owned()
    } else if !is_near && addresses.is_empty() {
        let failed = fs::write(folder.join(REQUEST), "").err().map(|error| format!(": {error}"));
        format!("does not answer from another machine{}", failed.unwrap_or_default())
    } else {
        let local = is_near.then(|| socket(folder).and_then(|(_open, path)| connected_at(&path)));
        let place = if is_near { "" } else { " from another machine" };
        match first(local, &addresses, claim, bytemuck::bytes_of(&secret.0), timeout) {
            Ok(Ok(peer)) => return Ok(Ok(peer)),
            // Otherwise another process has taken its place.
            Ok(Err(why)) if why != WRONG_SECRET => return Err(Error::Launch(why)),
            Ok(Err(_)) => format!("does not answer{place}"),
            Err(error) => format!("does not answer{place}: {error}"),
        }
    };
    Ok(Err(format!("; process {} wrote the file of rank 0 and {why}", process.id)))
}

fn read(folder: &Path) -> io::Result<Entry> {
    Ok(serde_json::from_slice(&fs::read(folder.join(PUBLISHED))?)?)
}

/// Returns a path of the socket in a folder that is short enough for an address, and exists while the folder is open.
fn socket(folder: &Path) -> io::Result<(OwnedFd, PathBuf)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = rustix::fs::open(folder, flags, Mode::empty())?;
    let path = format!("/proc/self/fd/{}/{SOCKET}", open.as_raw_fd()).into();
    Ok((open, path))
}

fn remove_files(folder: &Path) {
    for file in [REQUEST, SOCKET, PUBLISHED] {
        let _ = fs::remove_file(folder.join(file));
    }
}

/// Removes the folders of other jobs that were killed before their worlds started.
fn remove_left(of_user: &Path, own: &Path) {
    let folders = fs::read_dir(of_user).into_iter().flatten().flatten().map(|entry| entry.path());
    for folder in folders.filter(|folder| folder != own) {
        if read(&folder).is_ok_and(|entry| !entry.process.lives()) {
            remove_files(&folder);
            let _ = fs::remove_dir(folder);
        }
    }
}

fn cannot_use(folder: &Path, error: &io::Error) -> Error {
    Error::Launch(format!(
        "ranks cannot find each other in {}: {error}; UNISONO_BOOTSTRAP_DIR names another folder for them",
        folder.display()
    ))
}

#[cfg(test)]
mod tests;
