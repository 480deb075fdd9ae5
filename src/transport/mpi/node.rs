//! How the ranks of a node come to share memory.

use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::AsRawFd as _;
use rustix::io::Errno;
use unisono_collectives::{Rank, Topology};

use super::launch::say;
use super::sys::Comm;
use crate::config::{Config, KernelCopies};
use crate::error::Result;
use crate::memory::{Pages, Registry};
use crate::status::Roll;
use crate::system;
use crate::transport::shared::Shared;
use crate::transport::shared::board::Board;
use crate::transport::shared::reach::{ByKernel, Processes, Reach, can_read, is_kernel_fast, map_untouched};

/// What other ranks try to read, to see whether the kernel lets them.
static READABLE: AtomicU64 = AtomicU64::new(0);

/// Shares memory with the ranks of this node; `None` where there are no others, or the system does not let
/// processes share memory, which is said once. Called by all ranks of `comm`.
///
/// Nodes that are declared for a trial share memory only inside of each.
pub(super) fn share(
    comm: Comm,
    topology: &Topology,
    config: &Config,
    spins: u32,
    roll: &Roll,
) -> Result<Option<Shared>> {
    let (rank, declared) = (comm.rank()?, config.node_sizes.as_deref());
    let declared = declared.filter(|sizes| sizes.iter().sum::<usize>() == topology.ranks());
    let declared = declared.map(Topology::from_node_sizes);
    let declared_node = declared.map_or(0, |declared| declared.node_of(rank));
    let node = comm.split(topology.node_of(rank) * topology.ranks() + declared_node)?;
    let shared =
        if node.ranks()? == 1 { Ok(None) } else { share_with(node, comm, config.kernel_copies, spins, roll) };
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
        Roll::shared(pages, number, ranks, &members, position).ok_or(Errno::NOENT)
    })?;
    shared.or_else(|_| Roll::alone(rank, ranks))
}

fn share_with(
    node: Comm,
    comm: Comm,
    copies: KernelCopies,
    spins: u32,
    roll: &Roll,
) -> Result<Option<Shared>> {
    let (position, ranks) = (node.rank()?, node.ranks()?);
    let gathered = |values: Vec<u64>| values.into_iter().map(|value| value as usize).collect::<Vec<_>>();
    let members = gathered(node.all_gather(comm.rank()? as u64)?);
    let process_ids = process_ids(node)?;

    let size_bytes = Board::size_bytes(ranks);
    let board = common(node, &process_ids, size_bytes, |pages, number| {
        let board = match position {
            0 => Board::new(pages, ranks, number),
            _ => Board::existing(pages, ranks, number).ok_or(Errno::NOENT)?,
        };
        board.touch().map(|()| board)
    })?;
    let board = match board {
        Ok(board) => board,
        Err(cause) => {
            if position == 0 {
                say(&cannot_share(cause, size_bytes));
            }
            return Ok(None);
        }
    };

    let by_kernel = by_kernel(node, position, copies, &process_ids)?;
    let reach = Reach::Processes(Processes::new(process_ids, by_kernel));
    Ok(Some(Shared::new(position, members, (board, roll.clone()), reach, Registry::of_processes(), spins)))
}

/// What the kernel copies between the ranks of a node. All of them find the same, and one says what cannot be.
fn by_kernel(node: Comm, position: usize, copies: KernelCopies, process_ids: &[i32]) -> Result<ByKernel> {
    if copies == KernelCopies::Off {
        return Ok(ByKernel::Nothing);
    }
    let refusals = node.all_gather(u64::from(!can_read_next(node, position, process_ids)?))?;
    if let Some(first) = refusals.iter().position(|&refused| refused == 1) {
        if first == position {
            say(&format!(
                "the kernel does not let processes of {} read each other's memory (process_vm_readv): {}; arrays that are not \
                 registered are copied twice",
                system::host(),
                system::why_no_copies()
            ));
        }
        return Ok(ByKernel::Nothing);
    }
    let is_slow = node.all_gather(u64::from(copies == KernelCopies::Auto && !is_kernel_fast()))?;
    Ok(if is_slow.contains(&1) { ByKernel::Messages } else { ByKernel::Everything })
}

/// Memory that all ranks of `node` have in common, and what each makes of it, knowing its number; why not, where one of them
/// cannot have it: of several reasons that of the first rank, since what it has not the others do not find.
fn common<T>(
    node: Comm,
    process_ids: &[i32],
    size_bytes: usize,
    make: impl Fn(Pages, u64) -> rustix::io::Result<T>,
) -> Result<rustix::io::Result<T>> {
    // It has no name that could be left behind.
    let number = node.all_gather(std::hash::RandomState::new().hash_one(0))?[0];
    let made = (node.rank()? == 0).then(|| Pages::shared(size_bytes));
    let (file, own) = match made {
        Some(Ok((file, pages))) => (Some(file), Some(make(pages, number))),
        Some(Err(error)) => (None, Some(Err(error))),
        None => (None, None),
    };
    let file_number = file.as_ref().map_or(u64::MAX, |file| file.as_raw_fd() as u64);
    let file_number = node.all_gather(file_number)?[0];
    let common = own.unwrap_or_else(|| make(map_untouched(process_ids[0], file_number)?, number));
    // The file stays open until all have mapped it.
    let errors = node.all_gather(common.as_ref().map_or_else(|error| error.raw_os_error() as u64, |_| 0))?;
    let first = errors.into_iter().find(|&error| error != 0);
    Ok(first.map_or(common, |error| Err(Errno::from_raw_os_error(error as i32))))
}

fn process_ids(node: Comm) -> Result<Vec<i32>> {
    Ok(node.all_gather(u64::from(std::process::id()))?.into_iter().map(|id| id as i32).collect())
}

/// What is said where ranks of a node have no board in common.
fn cannot_share(cause: Errno, size_bytes: usize) -> String {
    let cause = std::io::Error::from(cause);
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
