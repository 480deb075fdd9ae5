//! Checks that a node has memory for the arrays of a benchmark. The system grants allocations beyond its memory, and kills a
//! process when they are written.

use unisono::internals::{AvailableMemory, NodeFacts};
use unisono::size::approximate;
use unisono::{Algorithm, Choice, Communicator, Memory, ReduceOp, Result, Vendor};

use super::{Operation, Settings};

/// The result of the check that every node has enough memory for its ranks together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Room {
    /// Every node has enough memory.
    Enough,
    /// This rank is the first whose node lacks memory, for this reason.
    TooLittle(String),
    /// Another rank is the first whose node lacks memory.
    TooLittleElsewhere,
}

/// Checks the memory for a benchmark. All ranks call it before they measure.
///
/// # Errors
/// As [`Communicator::all_reduce`].
pub fn room(comm: &mut Communicator, settings: &Settings) -> Result<Room> {
    for_arrays(comm, &settings.sizes_bytes, arrays(settings))
}

/// Checks the memory for `arrays` arrays at a time on each rank, of the largest of these sizes. All ranks call it.
pub(super) fn for_arrays(comm: &mut Communicator, sizes_bytes: &[usize], arrays: usize) -> Result<Room> {
    let local_ranks = NodeFacts::of(comm).local_ranks;
    let most_bytes = sizes_bytes.iter().copied().max().unwrap_or(0);
    let needed_bytes = most_bytes.saturating_mul(arrays).saturating_mul(local_ranks);
    let short = AvailableMemory::shortage(needed_bytes as u64);
    let mut first = [if short.is_some() { comm.rank() } else { comm.ranks() } as u64];
    comm.all_reduce(&mut first, ReduceOp::Min)?;
    let is_first = first == [comm.rank() as u64];
    Ok(match short {
        _ if first == [comm.ranks() as u64] => Room::Enough,
        Some(available) if is_first => {
            let (array, needed) = (approximate(most_bytes as u64), approximate(needed_bytes as u64));
            Room::TooLittle(format!(
                "arrays of {array} on {local_ranks} ranks of a node need {needed}, including copies, but only {available}"
            ))
        }
        _ => Room::TooLittleElsewhere,
    })
}

/// Returns the number of arrays of this size that a rank holds at a time: the reduced one, and copies.
fn arrays(settings: &Settings) -> usize {
    let copies = |choice: &Choice| {
        // Messages contain the original input, so it is copied. MPIs have internal buffers.
        choice.vendor() == Some(Vendor::Mpi) || *choice == Algorithm::AllToAll.into()
    };
    let is_copied = settings.memory == Memory::Device || settings.contenders.iter().any(copies);
    // Half-precision arrays are stored as f32, and rounded for sending.
    let is_widened = settings.dtype.is_half() && settings.operations.iter().copied().any(Operation::reduces);
    // Messages in flight hold a few of the largest arrays.
    let in_flight = if settings.operations.contains(&Operation::SendRecv) { 3 } else { 0 };
    1 + usize::from(is_copied) + usize::from(settings.overlap) + if is_widened { 2 } else { 0 } + in_flight
}

#[cfg(test)]
mod tests {
    use super::*;
    use unisono::DType;

    fn settings(algorithm: &str, dtype: DType, sizes_bytes: &[usize]) -> Settings {
        Settings {
            contenders: vec![algorithm.parse().unwrap()],
            operations: vec![unisono::Operation::AllReduce.into()],
            sizes_bytes: sizes_bytes.to_vec(),
            dtype,
            op: ReduceOp::Sum,
            memory: Memory::Slice,
            iterations: None,
            warm_up: 3,
            checks: true,
            overlap: false,
        }
    }

    #[test]
    fn copies_and_widened_elements_are_counted() {
        let arrays = |algorithm, dtype| arrays(&settings(algorithm, dtype, &[8]));
        assert_eq!((arrays("ring", DType::F32), arrays("all-to-all", DType::F32)), (1, 2));
        assert_eq!((arrays("ring", DType::BF16), arrays("mpi", DType::F32)), (3, 2));
    }

    #[test]
    fn first_rank_without_memory_reports_the_reason() {
        let short = |sizes: &[usize]| {
            let settings = settings("ring", DType::F32, sizes);
            unisono::threads(3, |mut comm| room(&mut comm, &settings).unwrap())
        };
        assert_eq!(short(&[8, 1 << 10]), [Room::Enough, Room::Enough, Room::Enough]);
        let rooms = short(&[8, 1 << 50]);
        let Room::TooLittle(why) = &rooms[0] else { panic!("{rooms:?}") };
        assert!(why.starts_with("arrays of 1024 TiB on 3 ranks of a node need 3072 TiB"), "{why}");
        assert_eq!(rooms[1..], [Room::TooLittleElsewhere, Room::TooLittleElsewhere]);
    }
}
