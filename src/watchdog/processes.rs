//! Detects when processes of other ranks of a node end.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open, test_kill_process};
use unisono_collectives::Rank;

use super::file::OwnFile;
use super::identity::Identities;
use crate::status::StatusBoard;
use crate::system::Process;

/// The processes that are alive, as far as detected.
#[derive(Debug, Default)]
pub(super) struct Processes {
    living: Vec<Living>,
}

#[derive(Debug)]
struct Living {
    rank: Rank,
    process: Process,
    /// The pidfd, which is readable when the process ends. The kernel may be too old for one, or the process may have no free descriptor.
    file: OwnFile,
}

impl Living {
    /// Returns whether the process has ended. A readable descriptor alone is no proof: the program may have closed and reused it.
    fn has_ended(&self) -> bool {
        let may_have_ended = match self.file.get() {
            Some(file) => {
                let mut look = [PollFd::from_borrowed_fd(file, PollFlags::IN)];
                poll(&mut look, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
            }
            // In contrast to a look at `/proc`, it needs no descriptor.
            None => Pid::from_raw(self.process.id as i32).map(test_kill_process) == Some(Err(Errno::SRCH)),
        };
        may_have_ended && !self.process.lives()
    }
}

impl Processes {
    /// Returns the processes of the other ranks on a status board. They share a PID namespace, since they have found the board's
    /// memory by process IDs.
    pub(super) fn on(status: &StatusBoard, identities: &Identities) -> Self {
        let mut processes = Self::default();
        for &rank in status.members().iter().filter(|&&rank| rank != status.rank()) {
            let Some(process) = Pid::from_raw(identities.0[rank].process_id as i32) else { continue };
            let file = OwnFile::of(pidfd_open(process, PidfdFlags::empty()).ok());
            let process = Process::of(identities.0[rank].process_id);
            processes.living.push(Living { rank, process, file });
        }
        processes
    }

    pub(super) fn waits_on(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.living.iter().filter_map(|living| living.file.get())
    }

    /// Returns the ranks that have ended since the last call.
    pub(super) fn ended(&mut self) -> Vec<Rank> {
        self.living.extract_if(.., |living| living.has_ended()).map(|living| living.rank).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_watched_even_without_a_descriptor() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id());
        let pidfd = || pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        let watched = Living { rank: 1, process: process.clone(), file: OwnFile::of(Some(pidfd())) };
        let closed = Living { rank: 2, process: process.clone(), file: OwnFile::replaced(pidfd()) };
        // Without a descriptor, its start time is unknown too.
        let process = Process { started: 0, ..process };
        let refused = Living { rank: 3, process, file: OwnFile::of(None) };
        let mut processes = Processes { living: vec![watched, closed, refused] };
        assert_eq!(processes.waits_on().count(), 1);
        assert!(processes.ended().is_empty(), "the process is alive");
        child.kill().and_then(|()| child.wait()).unwrap();
        assert_eq!(processes.ended(), [1, 2, 3]);
    }
}
