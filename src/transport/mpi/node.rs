//! How the ranks of a node come to share memory.

use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::AsRawFd as _;
use unisono_collectives::{Rank, Topology};

use super::sys::Comm;
use crate::error::Result;
use crate::memory::Pages;
use crate::registered::Registry;
use crate::transport::shared::Shared;
use crate::transport::shared::board::Board;
use crate::transport::shared::reach::{Processes, Reach, can_read, map_untouched};
use crate::watch::Roll;

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
    roll: &Roll,
) -> Result<Option<Shared>> {
    let rank = comm.rank()?;
    let declared = declared.filter(|sizes| sizes.iter().sum::<usize>() == topology.ranks());
    let declared = declared.map(Topology::from_node_sizes);
    let declared_node = declared.map_or(0, |declared| declared.node_of(rank));
    let node = comm.split(topology.node_of(rank) * topology.ranks() + declared_node)?;
    let shared = if node.ranks()? == 1 { Ok(None) } else { share_with(node, comm, spins, roll) };
    node.free()?;
    shared
}

/// The roll of the ranks of a node; one of this rank's own where they cannot share memory (of which [`share`] speaks). Called by all
/// ranks of `node`, which is really one, whatever nodes are declared.
pub(super) fn roll(node: Comm, rank: Rank, ranks: usize) -> Result<Roll> {
    let members: Vec<_> = node.all_gather(rank as u64)?.into_iter().map(|rank| rank as Rank).collect();
    let (position, size_bytes) = (node.rank()?, Roll::size_bytes(ranks, members.len()));
    if members.len() == 1 {
        return Roll::alone(rank, ranks);
    }
    let shared = common(node, &process_ids(node)?, size_bytes, |pages, number| {
        Roll::shared(pages, number, ranks, &members, position)
    })?;
    if all(node, shared.is_some())? { Ok(shared.expect("it is here")) } else { Roll::alone(rank, ranks) }
}

fn share_with(node: Comm, comm: Comm, spins: u32, roll: &Roll) -> Result<Option<Shared>> {
    let (position, ranks) = (node.rank()?, node.ranks()?);
    let gathered = |values: Vec<u64>| values.into_iter().map(|value| value as usize).collect::<Vec<_>>();
    let members = gathered(node.all_gather(comm.rank()? as u64)?);
    let process_ids = process_ids(node)?;

    let board = common(node, &process_ids, Board::size_bytes(ranks), |pages, number| match position {
        0 => Some(Board::new(pages, ranks, number)),
        _ => Board::existing(pages, ranks, number),
    })?;
    let all = |here| all(node, here);
    let board = board.filter(|board| board.touch().is_ok());
    let all_have_it = all(board.is_some())?;
    let Some(board) = board.filter(|_| all_have_it) else {
        if position == 0 {
            eprintln!(
                "unisono: processes of this node cannot share memory (is /proc there, and is it one container?): \
                       their messages go through MPI"
            );
        }
        return Ok(None);
    };

    let can_ask_kernel = all(can_read_next(node, position, &process_ids)?)?;
    if !can_ask_kernel && position == 0 {
        eprintln!(
            "unisono: the kernel does not let processes read each other's memory (process_vm_readv): arrays that \
                   are not registered are staged"
        );
    }
    let reach = Reach::Processes(Processes::new(process_ids, can_ask_kernel));
    Ok(Some(Shared::new(position, members, (board, roll.clone()), reach, Registry::of_processes(), spins)))
}

/// Memory that all ranks of `node` have in common, and what each makes of it, knowing its number, the first rank before the
/// others; `None` where it cannot be had.
fn common<T>(
    node: Comm,
    process_ids: &[i32],
    size_bytes: usize,
    make: impl Fn(Pages, u64) -> Option<T>,
) -> Result<Option<T>> {
    // It has no name that could be left behind.
    let number = node.all_gather(std::hash::RandomState::new().hash_one(0))?[0];
    let made = (node.rank()? == 0).then(|| Pages::shared(size_bytes).ok()).flatten();
    let (file, own) = made.map_or((None, None), |(file, pages)| (Some(file), make(pages, number)));
    let file_number = file.as_ref().map_or(u64::MAX, |file| file.as_raw_fd() as u64);
    let file_number = node.all_gather(file_number)?[0];
    let common = own.or_else(|| make(map_untouched(process_ids[0], file_number).ok()?, number));
    // The file stays open until all have mapped it.
    node.all_gather(0)?;
    Ok(common)
}

/// Whether all ranks of `node` say so.
fn all(node: Comm, here: bool) -> Result<bool> {
    Ok(node.all_gather(u64::from(here))?.into_iter().all(|here| here == 1))
}

fn process_ids(node: Comm) -> Result<Vec<i32>> {
    Ok(node.all_gather(u64::from(std::process::id()))?.into_iter().map(|id| id as i32).collect())
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
