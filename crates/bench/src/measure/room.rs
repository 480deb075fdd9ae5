//! Checks that a node has memory for the arrays of a benchmark. The system grants allocations beyond its memory, and kills a
//! process when they are written.

use unisono::internals::{AvailableMemory, NodeFacts, gather};
use unisono::size::approximate;
use unisono::{Algorithm, Choice, Communicator, Memory, Result, Vendor};

use super::{Operation, Settings};

/// Returns why a node lacks memory for a benchmark, identical on all ranks; `None` if every node has enough. All ranks call it
/// before they measure.
///
/// # Errors
/// As [`Communicator::all_reduce`].
pub fn room(comm: &mut Communicator, settings: &Settings) -> Result<Option<String>> {
    for_arrays(comm, &settings.sizes_bytes, arrays(settings))
}

/// As [`room`], for `arrays` arrays at a time on each rank, of the largest of these sizes.
pub(super) fn for_arrays(
    comm: &mut Communicator,
    sizes_bytes: &[usize],
    arrays: usize,
) -> Result<Option<String>> {
    let local_ranks = NodeFacts::of(comm).local_ranks;
    let most_bytes = sizes_bytes.iter().copied().max().unwrap_or(0);
    let needed_bytes = most_bytes.saturating_mul(arrays).saturating_mul(local_ranks);
    let short = AvailableMemory::shortage(needed_bytes as u64).map(|available| {
        let (array, needed) = (approximate(most_bytes as u64), approximate(needed_bytes as u64));
        format!(
            "arrays of {array} on {local_ranks} ranks of a node need {needed}, including copies, but only {available}"
        )
    });
    Ok(gather(comm, &short)?.into_iter().flatten().next())
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
    use unisono::{DType, ReduceOp};

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
    fn all_ranks_get_the_reason_of_the_first_without_memory() {
        let short = |sizes: &[usize]| {
            let settings = settings("ring", DType::F32, sizes);
            unisono::threads(3, |mut comm| room(&mut comm, &settings).unwrap())
        };
        assert_eq!(short(&[8, 1 << 10]), [None, None, None]);
        let reasons = short(&[8, 1 << 50]);
        let why = reasons[0].as_ref().unwrap();
        assert!(why.starts_with("arrays of 1024 TiB on 3 ranks of a node need 3072 TiB"), "{why}");
        assert_eq!(reasons[1..], [Some(why.clone()), Some(why.clone())]);
    }
}
