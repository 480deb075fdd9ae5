//! Detects when processes of other ranks of a node end.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use unisono_collectives::Rank;

use super::file::OwnFile;
use super::identity::Identities;
use crate::status::StatusBoard;
use crate::system::{Process, print_line};

/// The processes that are alive, as far as detected.
#[derive(Debug, Default)]
pub(super) struct Processes {
    living: Vec<Living>,
    /// Ranks that had ended before they could be watched.
    ended: Vec<Rank>,
}

#[derive(Debug)]
struct Living {
    rank: Rank,
    process: Process,
    /// The pidfd, which is readable when the process ends.
    file: OwnFile,
}

impl Living {
    /// Returns whether the process has ended. A readable descriptor alone is no proof: the program may have closed and reused it.
    fn has_ended(&self) -> bool {
        let may_have_ended = self.file.get().is_none_or(|file| {
            let mut look = [PollFd::from_borrowed_fd(file, PollFlags::IN)];
            poll(&mut look, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
        });
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
            match pidfd_open(process, PidfdFlags::empty()) {
                Ok(file) => {
                    let process = Process::of(identities.0[rank].process_id);
                    processes.living.push(Living { rank, process, file: OwnFile::new(file) });
                }
                Err(Errno::SRCH) => processes.ended.push(rank),
                Err(error) => {
                    print_line(&format!(
                        "rank {} cannot watch other processes (pidfd_open: {error}): that one of them is \
                         killed is detected by deadlines alone",
                        status.rank()
                    ));
                    break;
                }
            }
        }
        processes
    }

    pub(super) fn waits_on(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.living.iter().filter_map(|living| living.file.get())
    }

    /// Returns the ranks that have ended since the last call.
    pub(super) fn ended(&mut self) -> Vec<Rank> {
        let mut ended = std::mem::take(&mut self.ended);
        ended.extend(self.living.extract_if(.., |living| living.has_ended()).map(|living| living.rank));
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_the_descriptor_does_not_count_as_the_end_of_a_process() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id());
        let pidfd = || pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        let watched = Living { rank: 1, process: process.clone(), file: OwnFile::new(pidfd()) };
        let closed = Living { rank: 2, process, file: OwnFile::replaced(pidfd()) };
        let mut processes = Processes { living: vec![watched, closed], ended: Vec::new() };
        assert_eq!(processes.waits_on().count(), 1);
        assert!(processes.ended().is_empty(), "the process is alive");
        child.kill().and_then(|()| child.wait()).unwrap();
        assert_eq!(processes.ended(), [1, 2]);
    }
}
