//! Processes: which they are, whether they live, how this one speaks of what went wrong, and with which code it then ends.

use std::fmt::Display;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The exit code of a process that ends because a rank has failed.
pub(crate) const FAILED: i32 = 1;

/// Writes to standard error in one piece: other ranks may be saying something at the same moment.
pub(crate) fn say(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// A process, told from all others: numbers of processes are used again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) id: u32,
    /// When it was started, in ticks of the machine's clock.
    pub(crate) started: u64,
    /// The machine that knows it by this number.
    pub(crate) machine: String,
}

impl Process {
    pub(crate) fn own() -> Self {
        Self::of(std::process::id())
    }

    /// The one that has started this process.
    pub(crate) fn parent() -> Self {
        Self::of(std::os::unix::process::parent_id())
    }

    /// The first of this process's session: a login's, a script's. In a container that may be a process outside, which has no
    /// number here but 0 (of which rustix's `getsid` knows nothing): it is the same for all processes of the session.
    pub(crate) fn session() -> Self {
        let session = Stat::of("self").and_then(|stat| stat.field(Stat::SESSION)?.parse().ok());
        session.map_or_else(Self::own, Self::of)
    }

    pub(crate) fn of(id: u32) -> Self {
        Self { id, started: started(id).unwrap_or(0), machine: machine().to_owned() }
    }

    /// Whether it has not ended, as far as can be known: of another machine's process it cannot.
    pub(crate) fn lives(&self) -> bool {
        self.machine != machine() || started(self.id) == Some(self.started)
    }
}

/// What the system says of a process: `PID (NAME) STATE PARENT GROUP SESSION …`, of which the name may hold anything.
struct Stat(String);

impl Stat {
    const STATE: usize = 3;
    const SESSION: usize = 6;
    const STARTED: usize = 22;

    fn of(process: impl Display) -> Option<Self> {
        fs::read_to_string(format!("/proc/{process}/stat")).ok().map(Self)
    }

    /// One of the fields behind the name, by its number in proc_pid_stat(5).
    fn field(&self, number: usize) -> Option<&str> {
        self.0.rsplit_once(')')?.1.split_whitespace().nth(number - Self::STATE)
    }
}

/// When a process was started, if it runs.
fn started(id: u32) -> Option<u64> {
    let stat = Stat::of(id)?;
    let runs = !matches!(stat.field(Stat::STATE)?, "Z" | "X");
    stat.field(Stat::STARTED).filter(|_| runs)?.parse().ok()
}

/// What is the same for processes that know each other by their numbers: the boot of a machine, and the table of processes.
pub(crate) fn machine() -> &'static str {
    static MACHINE: LazyLock<String> = LazyLock::new(|| {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_else(|_| super::host());
        let table = fs::metadata("/proc/self/ns/pid").map_or(0, |table| table.ino());
        format!("{}-{table}", boot.trim())
    });
    &MACHINE
}

/// This user's own folder in one that is everybody's, which nobody else can look into. It stays.
pub(crate) fn private_folder(temporary: &Path) -> io::Result<PathBuf> {
    let user = rustix::process::getuid().as_raw();
    let folder = temporary.join(format!("unisono-user-{user}"));
    match fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(&folder)?;
    if found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0 {
        return Ok(folder);
    }
    let why = format!("{} is another user's, or others can write to it", folder.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_lives_until_it_ends() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id());
        assert!(Process::own().lives() && process.lives());
        child.kill().and_then(|()| child.wait()).unwrap();
        assert!(!process.lives());
        assert!(!Process { started: 0, ..Process::own() }.lives(), "its number was another's");
        assert!(Process { machine: "elsewhere".into(), ..process }.lives(), "nobody can know");
    }

    #[test]
    fn a_folder_that_others_look_into_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let temporary = tempfile::tempdir().unwrap();
        let folder = private_folder(temporary.path()).unwrap();
        assert_eq!(private_folder(temporary.path()).unwrap(), folder);
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(private_folder(temporary.path()).is_err());
    }
}
