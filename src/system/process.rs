//! The identity and state of processes, printing, and replacement of files.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// The exit code of a process that ends because a rank has failed.
pub(crate) const FAILED: i32 = 1;
/// The numbers of fields of `/proc/PID/stat`.
const STATE: usize = 3;
const SESSION: usize = 6;
const STARTED: usize = 22;

/// Prints lines on standard error in one call, since other ranks may print at the same time.
pub(crate) fn print_line(text: &str) {
    let lines: String = text.lines().map(|line| format!("unisono: {line}\n")).collect();
    let _ = std::io::stderr().write_all(lines.as_bytes());
}

/// Prints a line unless this process has printed it: an MPI program has a world for each of its communicators.
pub(crate) fn print_once(line: &str) {
    static PRINTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if PRINTED.lock().unwrap_or_else(PoisonError::into_inner).insert(line.to_owned()) {
        print_line(line);
    }
}

/// A process, identified with its start time since process ids are reused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) id: u32,
    /// Its start time, in ticks of the machine's clock.
    pub(crate) started: u64,
    /// The machine and PID namespace to which the id belongs.
    pub(crate) machine: String,
}

impl Process {
    pub(crate) fn own() -> Self {
        Self::of(std::process::id())
    }

    pub(crate) fn parent() -> Self {
        Self::of(std::os::unix::process::parent_id())
    }

    /// Returns the leader of this process's session, such as a login or a script. In a container it may be an outside process,
    /// whose id here is 0 for all processes of the session. rustix's `getsid` does not handle that.
    pub(crate) fn session() -> Self {
        let session = stat("self", [SESSION]).and_then(|[session]| session.parse().ok());
        session.map_or_else(Self::own, Self::of)
    }

    pub(crate) fn of(id: u32) -> Self {
        Self { id, started: started(id).unwrap_or(0), machine: machine().to_owned() }
    }

    /// Returns whether it is alive. Processes of another machine count as alive.
    pub(crate) fn lives(&self) -> bool {
        self.machine != machine() || started(self.id) == Some(self.started)
    }
}

/// Returns fields of `/proc/PID/stat`, by their numbers in proc_pid_stat(5): `PID (NAME) STATE PARENT GROUP SESSION …`, in which the name may
/// contain any character.
fn stat<const N: usize>(process: impl Display, numbers: [usize; N]) -> Option<[String; N]> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let after_name: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(numbers.map(|number| after_name.get(number - STATE).copied().unwrap_or_default().to_owned()))
}

/// Returns whether a process is stopped, by a signal or a debugger.
pub(crate) fn is_stopped(id: u32) -> bool {
    stat(id, [STATE]).is_some_and(|[state]| matches!(&*state, "T" | "t"))
}

fn started(id: u32) -> Option<u64> {
    let [state, started] = stat(id, [STATE, STARTED])?;
    if matches!(&*state, "Z" | "X") { None } else { started.parse().ok() }
}

/// Identifies the scope of process ids: the machine's boot and the PID namespace.
pub(crate) fn machine() -> &'static str {
    static MACHINE: LazyLock<String> = LazyLock::new(|| {
        let table = fs::metadata("/proc/self/ns/pid").map_or(0, |table| table.ino());
        format!("{}-{table}", boot())
    });
    &MACHINE
}

/// Identifies the machine and its boot.
pub(crate) fn boot() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    boot.map_or_else(|_| super::host(), |boot| boot.trim().to_owned())
}

/// Returns the path of this user's own folder within a shared one.
pub(crate) fn private_path(temporary: &Path) -> PathBuf {
    temporary.join(format!("unisono-user-{}", rustix::process::getuid().as_raw()))
}

/// Returns this user's own folder within a shared one, inaccessible to others. It is not deleted.
pub(crate) fn private_folder(temporary: &Path) -> io::Result<PathBuf> {
    let user = rustix::process::getuid().as_raw();
    let folder = private_path(temporary);
    if let Err(error) = fs::DirBuilder::new().mode(0o700).create(&folder)
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(error);
    }
    let found = fs::symlink_metadata(&folder)?;
    if found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0 {
        return Ok(folder);
    }
    let why = format!("{} belongs to another user, or others can write to it", folder.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Replaces a file atomically, with these permissions: it is written under a temporary name first.
pub(crate) fn replace_file(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let (name, number) = (path.file_name().unwrap_or_default(), WRITTEN.fetch_add(1, Ordering::Relaxed));
    let part = path.with_file_name(format!(".{}.{}.{number}", name.to_string_lossy(), std::process::id()));
    let made = fs::File::options().write(true).create_new(true).mode(mode).open(&part);
    let written = made.and_then(|mut file| file.write_all(contents)).and_then(|()| fs::rename(&part, path));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_alive_until_it_ends() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id());
        assert!(Process::own().lives() && process.lives());
        child.kill().and_then(|()| child.wait()).unwrap();
        assert!(!process.lives());
        assert!(!Process { started: 0, ..Process::own() }.lives(), "its id belonged to another process");
        assert!(
            Process { machine: "elsewhere".into(), ..process }.lives(),
            "processes of other machines count as alive"
        );
    }

    #[test]
    fn folder_readable_by_others_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let temporary = tempfile::tempdir().unwrap();
        let folder = private_folder(temporary.path()).unwrap();
        assert_eq!(private_folder(temporary.path()).unwrap(), folder);
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(private_folder(temporary.path()).is_err());
    }
}
