//! Detects when processes of other ranks of a node end.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use unisono_collectives::Rank;

use super::card::Cards;
use crate::status::StatusBoard;
use crate::system::say;

/// The processes that are alive, as far as known, by pidfd (readable when the process ends).
#[derive(Debug, Default)]
pub(super) struct Processes {
    living: Vec<(Rank, OwnedFd)>,
    /// Those that had ended before they could be watched.
    ended: Vec<Rank>,
}

impl Processes {
    /// The processes of the other ranks on a status board. They share a PID namespace, by which they found its memory.
    pub(super) fn on(status: &StatusBoard, cards: &Cards) -> Self {
        let mut processes = Self::default();
        for &rank in status.members().iter().filter(|&&rank| rank != status.rank()) {
            let Some(process) = Pid::from_raw(cards.0[rank].process_id as i32) else { continue };
            match pidfd_open(process, PidfdFlags::empty()) {
                Ok(file) => processes.living.push((rank, file)),
                Err(Errno::SRCH) => processes.ended.push(rank),
                Err(error) => {
                    say(&format!(
                        "unisono: rank {} cannot watch other processes (pidfd_open: {error}): that one of them is \
                         killed is seen by deadlines alone\n",
                        status.rank()
                    ));
                    break;
                }
            }
        }
        processes
    }

    pub(super) fn waits_on(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.living.iter().map(|(_, file)| file.as_fd())
    }

    /// Those that have ended since the last call.
    pub(super) fn ended(&mut self) -> Vec<Rank> {
        let mut ended = std::mem::take(&mut self.ended);
        let is_over = |(_, file): &mut (Rank, OwnedFd)| {
            let mut look = [PollFd::new(&*file, PollFlags::IN)];
            poll(&mut look, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
        };
        ended.extend(self.living.extract_if(.., is_over).map(|(rank, _)| rank));
        ended
    }
}
