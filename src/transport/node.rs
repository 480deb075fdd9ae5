//! Sets up shared memory between the ranks of a node.
//!
//! All ranks of the world make the same all-gathers regardless of events on their nodes, since a bootstrap offers no all-gathers of a part
//! of the ranks.

use std::sync::atomic::AtomicU64;

use rustix::fd::AsRawFd as _;
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;
use unisono_collectives::{Rank, Topology};

use super::bootstrap::{Bootstrap, gather};
use super::shared::Shared;
use super::shared::board::Board;
use super::shared::reach::{Processes, Reach, can_read, is_kernel_fast};
use crate::config::{Config, KernelCopies};
use crate::error::Result;
use crate::memory::Pages;
use crate::status::StatusBoard;
use crate::system;

/// The ranks that may share memory, in order, with their processes.
#[derive(Debug, Clone)]
pub(super) struct LocalRanks {
    members: Vec<Rank>,
    process_ids: Vec<i32>,
    /// The position of this rank among them.
    position: usize,
}

impl LocalRanks {
    /// Returns the ranks of this rank's node. All ranks call it.
    pub(super) fn of_node(bootstrap: &mut dyn Bootstrap, topology: &Topology) -> Result<Self> {
        let process_ids = gather(bootstrap, &(std::process::id() as i32))?;
        let all = Self { members: (0..topology.ranks()).collect(), process_ids, position: bootstrap.rank() };
        Ok(all.on_node_of(topology))
    }

    /// Returns those of these ranks that are on this rank's node in a topology.
    pub(super) fn on_node_of(&self, topology: &Topology) -> Self {
        let rank = self.rank();
        let is_local = |&(member, _): &(Rank, i32)| topology.node_of(member) == topology.node_of(rank);
        let all = std::iter::zip(self.members.iter().copied(), self.process_ids.iter().copied());
        let (members, process_ids): (Vec<_>, Vec<_>) = all.filter(is_local).unzip();
        let position = members.iter().position(|&member| member == rank).expect("a rank is on its node");
        Self { members, process_ids, position }
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    fn rank(&self) -> Rank {
        self.members[self.position]
    }

    /// Returns whether the ranks are threads of one process, which can access all of each other's memory.
    fn are_one_process(&self) -> bool {
        self.process_ids.iter().all(|&id| id == self.process_ids[0])
    }

    /// All-gathers values among these ranks, in order. All ranks of the world call it.
    pub(super) fn gather<T: Copy + Serialize + DeserializeOwned>(
        &self,
        bootstrap: &mut dyn Bootstrap,
        own: &T,
    ) -> Result<Vec<T>> {
        let all = gather(bootstrap, own)?;
        Ok(self.members.iter().map(|&rank| all[rank]).collect())
    }
}

/// Returns the status board of the ranks of a node, or a private one if they cannot share memory, which [`share`] reports. All ranks
/// call it, with the local ranks of their real node, regardless of declared nodes.
pub(super) fn status(bootstrap: &mut dyn Bootstrap, local_ranks: &LocalRanks) -> Result<StatusBoard> {
    let ranks = bootstrap.ranks();
    let size_bytes = StatusBoard::size_bytes(ranks, local_ranks.len());
    let gather = |own: [u64; 3]| local_ranks.gather(bootstrap, &own);
    let shared = common(gather, local_ranks.position == 0, size_bytes, |pages| {
        StatusBoard::shared(pages, ranks, &local_ranks.members, local_ranks.position).ok_or(Errno::NOENT)
    })?;
    shared.or_else(|_| StatusBoard::alone(local_ranks.rank(), ranks))
}

/// The memory of the ranks of a node, if there are several. The error is the reason why the system does not allow them to share any. It is
/// identical on all of them.
pub(super) type Sharing = std::result::Result<Option<Shared>, String>;

/// Shares memory with the other ranks of this node. All ranks call it.
pub(super) fn share(
    bootstrap: &mut dyn Bootstrap,
    local_ranks: &LocalRanks,
    config: &Config,
    status: &StatusBoard,
) -> Result<Sharing> {
    let (position, ranks) = (local_ranks.position, local_ranks.len());
    let size_bytes = Board::size_bytes(ranks);
    let gather = |own: [u64; 3]| local_ranks.gather(bootstrap, &own);
    let board = common(gather, position == 0, size_bytes, |pages| {
        let board = Board::new(pages, ranks);
        // A single rank sends no messages over the board.
        if ranks > 1 { board.touch().map(|()| board) } else { Ok(board) }
    })?;
    let by_kernel = by_kernel(bootstrap, local_ranks, config)?;
    if ranks == 1 {
        return Ok(Ok(None));
    }
    let board = match board {
        Ok(board) => board,
        Err((_, cause)) => return Ok(Err(cannot_share(cause, size_bytes))),
    };
    let processes = || Processes::new(local_ranks.process_ids.clone(), by_kernel);
    let reach = Reach((!local_ranks.are_one_process()).then(processes));
    let members = local_ranks.members.clone();
    Ok(Ok(Some(Shared::new(position, members, (board, status.clone()), reach))))
}

/// Returns whether the kernel copies between the ranks of a node. The result is identical on all of them. One rank prints the reason if the
/// kernel refuses.
fn by_kernel(bootstrap: &mut dyn Bootstrap, local_ranks: &LocalRanks, config: &Config) -> Result<bool> {
    // All ranks have the same setting.
    if config.kernel_copies == KernelCopies::Off {
        return Ok(false);
    }
    // Some systems allow only a parent to read, unless the process permits it.
    let _ = rustix::process::set_ptracer(rustix::process::PTracer::Any);
    // Each rank reads a known value of the next one. The value must live until all ranks have read it.
    let readable = Box::new(AtomicU64::new(readable_by(local_ranks.position)));
    let addresses = local_ranks.gather(bootstrap, &(readable.as_ptr() as u64))?;
    let next = (local_ranks.position + 1) % local_ranks.len();
    let needs_no_kernel = local_ranks.are_one_process();
    let can_read =
        needs_no_kernel || can_read(local_ranks.process_ids[next], addresses[next], readable_by(next));
    let is_slow =
        can_read && !needs_no_kernel && config.kernel_copies == KernelCopies::Auto && !is_kernel_fast();
    let found = local_ranks.gather(bootstrap, &(can_read, is_slow))?;
    if let Some(first) = found.iter().position(|(can_read, _)| !can_read) {
        if first == local_ranks.position && config.warnings {
            system::print_once(&format!(
                "the kernel does not allow processes of {} to read each other's memory (process_vm_readv): {}; arrays that are \
                 not registered are copied twice",
                system::host(),
                system::why_no_copies()
            ));
        }
        return Ok(false);
    }
    Ok(!found.iter().any(|(_, is_slow)| *is_slow))
}

/// Returns the value that the rank at a position provides for others to read.
fn readable_by(position: usize) -> u64 {
    0x756e_6973_6f6e_6f00 + position as u64
}

/// Creates memory that ranks of a node share, and applies `make` to it on each rank. `gather` is an all-gather among these
/// ranks. On failure, it returns the first rank that failed and the reason, since later ones fail because of it.
pub(crate) fn common<T>(
    mut gather: impl FnMut([u64; 3]) -> Result<Vec<[u64; 3]>>,
    is_first: bool,
    size_bytes: usize,
    make: impl Fn(Pages) -> rustix::io::Result<T>,
) -> Result<std::result::Result<T, (Rank, Errno)>> {
    // The memory has no name, so no file remains.
    let (file, own) = match is_first.then(|| Pages::shared(size_bytes)) {
        Some(Ok((file, pages))) => (Some(file), Some(Ok(pages))),
        Some(Err(error)) => (None, Some(Err(error))),
        None => (None, None),
    };
    let process_id = std::process::id();
    let file_number = file.as_ref().map_or(u64::MAX, |file| file.as_raw_fd() as u64);
    let number =
        file.as_ref().and_then(|file| rustix::fs::fstat(file).ok()).map_or(0, |status| status.st_ino);
    let [process_id, file_number, number] = gather([process_id.into(), file_number, number])?[0];
    let open = || {
        let file = Pages::open(process_id as i32, file_number)?;
        // In a container, the id may denote another process here.
        if rustix::fs::fstat(&file)?.st_ino == number { Pages::of_file(file) } else { Err(Errno::NOENT) }
    };
    let common = own.unwrap_or_else(open).and_then(make);
    // The file stays open until all ranks have mapped it.
    let error = common.as_ref().map_or_else(|error| error.raw_os_error() as u64, |_| 0);
    let errors = gather([error, 0, 0])?;
    let failed = errors.iter().position(|[error, ..]| *error != 0);
    Ok(match failed {
        None => Ok(common.expect("no rank has failed")),
        Some(rank) => Err((rank, Errno::from_raw_os_error(errors[rank][0] as i32))),
    })
}

/// Returns the error text for ranks of a node that cannot share memory.
fn cannot_share(cause: Errno, size_bytes: usize) -> String {
    let cause = std::io::Error::from(cause);
    let mut advice = system::advice(&cause);
    if advice.is_empty() {
        advice += "; check that /proc is mounted, and that they run as one user in one container";
    }
    format!(
        "processes of {} cannot share memory ({} between them): {cause}{advice}",
        system::host(),
        crate::size::approximate(size_bytes as u64)
    )
}
