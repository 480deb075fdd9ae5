//! How the ranks of a node come to share memory.

use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::AsRawFd as _;
use rustix::io::Errno;
use unisono_collectives::Topology;

use super::launch::say;
use super::sys::Comm;
use crate::error::Result;
use crate::memory::Pages;
use crate::registered::Registry;
use crate::system;
use crate::transport::shared::Shared;
use crate::transport::shared::board::Board;
use crate::transport::shared::reach::{Processes, Reach, can_read, map_untouched};

/// What other ranks try to read, to see whether the kernel lets them.
static READABLE: AtomicU64 = AtomicU64::new(0);

/// Shares memory with the ranks of this node; `None` where there are no others, or the system does not let
/// processes share memory, which is said once. Called by all ranks of `comm`.
///
/// Nodes that are declared for a trial share memory only inside of each.
pub(super) fn share(
    comm: Comm,
    topology: &Topology,
    declared: Option<&[usize]>,
    spins: u32,
) -> Result<Option<Shared>> {
    let rank = comm.rank()?;
    let declared = declared.filter(|sizes| sizes.iter().sum::<usize>() == topology.ranks());
    let declared = declared.map(Topology::from_node_sizes);
    let declared_node = declared.map_or(0, |declared| declared.node_of(rank));
    let node = comm.split(topology.node_of(rank) * topology.ranks() + declared_node)?;
    let shared = if node.ranks()? == 1 { Ok(None) } else { share_with(node, comm, spins) };
    node.free()?;
    shared
}

fn share_with(node: Comm, comm: Comm, spins: u32) -> Result<Option<Shared>> {
    let (position, ranks) = (node.rank()?, node.ranks()?);
    let gathered = |values: Vec<u64>| values.into_iter().map(|value| value as usize).collect::<Vec<_>>();
    let members = gathered(node.all_gather(comm.rank()? as u64)?);
    let process_ids: Vec<_> =
        node.all_gather(u64::from(std::process::id()))?.into_iter().map(|id| id as i32).collect();

    // The first rank makes the board, and the others map it. It has no name that could be left behind.
    let board_number = node.all_gather(std::hash::RandomState::new().hash_one(0))?[0];
    let made = (position == 0).then(|| Pages::shared(Board::size_bytes(ranks)));
    let (file, own_board) = match made {
        Some(Ok((file, pages))) => (Some(file), Some(Ok(Board::new(pages, ranks, board_number)))),
        Some(Err(error)) => (None, Some(Err(error))),
        None => (None, None),
    };
    let file_number = file.as_ref().map_or(u64::MAX, |file| file.as_raw_fd() as u64);
    let file_number = node.all_gather(file_number)?[0];
    let board = own_board.unwrap_or_else(|| {
        let pages = map_untouched(process_ids[0], file_number)?;
        Board::existing(pages, ranks, board_number).ok_or(Errno::NOENT)
    });
    let board = board.and_then(|board| board.touch().map(|()| board));
    // The first rank's cause comes first: where it has no board, the others find none.
    let errnos = node.all_gather(board.as_ref().map_or_else(|error| error.raw_os_error() as u64, |_| 0))?;
    let cause = errnos.into_iter().find(|&errno| errno != 0);
    let (Ok(board), None) = (board, cause) else {
        if position == 0 {
            say(&cannot_share(cause, Board::size_bytes(ranks)));
        }
        return Ok(None);
    };

    let refusals = node.all_gather(u64::from(!can_read_next(node, position, &process_ids)?))?;
    let can_ask_kernel = refusals.iter().all(|&refused| refused == 0);
    if refusals.iter().position(|&refused| refused == 1) == Some(position) {
        say(&format!(
            "the kernel does not let processes of {} read each other's memory (process_vm_readv): {}; arrays that are not \
             registered are copied twice",
            system::host(),
            system::why_no_copies()
        ));
    }
    let reach = Reach::Processes(Processes::new(process_ids, can_ask_kernel));
    Ok(Some(Shared::new(position, members, board, reach, Registry::of_processes(), spins)))
}

/// What is said where ranks of a node have no board in common.
fn cannot_share(cause: Option<u64>, size_bytes: usize) -> String {
    let cause = std::io::Error::from_raw_os_error(cause.unwrap_or(0) as i32);
    let advice = match system::advice(&cause) {
        advice if advice.is_empty() => {
            "; is /proc there, and are they of one user and in one container?".to_owned()
        }
        advice => advice,
    };
    format!(
        "processes of {} cannot share memory ({} between them): {cause}{advice}: their messages go through MPI",
        system::host(),
        system::text(size_bytes as u64)
    )
}

/// Whether this rank can read memory of the next one.
fn can_read_next(node: Comm, position: usize, process_ids: &[i32]) -> Result<bool> {
    // Some systems let only a parent read, unless the process says otherwise.
    let _ = rustix::process::set_ptracer(rustix::process::PTracer::Any);
    let value = |position: usize| 0x756e_6973_6f6e_6f00 + position as u64;
    READABLE.store(value(position), Ordering::Release);
    let addresses = node.all_gather(READABLE.as_ptr() as u64)?;
    let next = (position + 1) % process_ids.len();
    Ok(can_read(process_ids[next], addresses[next], value(next)))
}
