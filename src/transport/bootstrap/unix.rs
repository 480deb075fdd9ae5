//! Unix sockets at a path.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Listens at a path, also if a killed process has left a socket there.
pub(crate) fn bind(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_left(path) => {
            fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    }
}

/// Returns whether a path is a socket at which no process listens.
fn is_left(path: &Path) -> bool {
    let is_socket = path.metadata().is_ok_and(|file| file.file_type().is_socket());
    is_socket && connected_at(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// Connects to a Unix socket, without waiting for room in its backlog.
pub(crate) fn connected_at(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}
