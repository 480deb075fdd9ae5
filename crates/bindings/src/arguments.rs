//! Checks of arguments. Errors are texts.

use std::fmt::Display;
use std::time::Duration;

use unisono::Choice;

/// Returns the number of a rank. `what` names the argument.
///
/// # Errors
/// If it is not one of `ranks`.
pub fn rank<N: Copy + Display + TryInto<usize>>(
    number: N,
    ranks: usize,
    what: &str,
) -> Result<usize, String> {
    let found = number.try_into().ok().filter(|&rank| rank < ranks);
    found.ok_or_else(|| format!("the {what} is {number}, in a communicator of {ranks} ranks"))
}

/// Returns the number of another rank than this one, `own`.
///
/// # Errors
/// As [`rank`], and if it is this one.
pub fn other<N: Copy + Display + TryInto<usize>>(
    number: N,
    (own, ranks): (usize, usize),
    what: &str,
) -> Result<usize, String> {
    let other = rank(number, ranks, what)?;
    if other == own { Err(format!("the {what} is {other}, which is this rank")) } else { Ok(other) }
}

/// Returns the numbers of the ranks of a group.
///
/// # Errors
/// As [`rank`], and if a rank appears twice.
pub fn members<N: Copy + Display + TryInto<usize>>(
    numbers: &[N],
    ranks: usize,
) -> Result<Vec<usize>, String> {
    let mut members = Vec::with_capacity(numbers.len());
    for &number in numbers {
        let member = rank(number, ranks, "member of a group")?;
        if members.contains(&member) {
            return Err(format!("rank {member} appears twice in a group"));
        }
        members.push(member);
    }
    Ok(members)
}

/// Checks the number of elements of each rank in an array of `count`. `what` names the array.
///
/// # Errors
/// If there is not one count for each rank, or the counts do not add up to the number of elements.
pub fn counts(counts: &[usize], (count, ranks): (usize, usize), what: &str) -> Result<(), String> {
    if counts.len() != ranks {
        return Err(format!("{} counts of the {what}, in a communicator of {ranks} ranks", counts.len()));
    }
    let sum = counts.iter().try_fold(0_usize, |sum, &count| sum.checked_add(count));
    if sum != Some(count) {
        return Err(format!("the {what} has {count} elements, but the sum of its counts {counts:?} differs"));
    }
    Ok(())
}

/// Checks the counts of an all-to-all with a count for every pair of ranks, for the arrays sent and received.
///
/// # Errors
/// As [`counts`], and if this rank, `own`, expects another number of elements from itself than it sends.
pub fn counts_of_pairs(
    (sent, sent_counts): (usize, &[usize]),
    (received, received_counts): (usize, &[usize]),
    (own, ranks): (usize, usize),
) -> Result<(), String> {
    counts(sent_counts, (sent, ranks), "array to send")?;
    counts(received_counts, (received, ranks), "array to receive")?;
    let (to, from) = (sent_counts[own], received_counts[own]);
    if to != from {
        return Err(format!("rank {own} sends {to} elements to itself, and expects {from}"));
    }
    Ok(())
}

/// Returns the number of words that hold this many bytes.
///
/// # Errors
/// If the number exceeds the address space.
pub fn words(size_bytes: usize) -> Result<usize, String> {
    if size_bytes > isize::MAX as usize - size_of::<u64>() {
        return Err(format!("{size_bytes} bytes exceed the address space"));
    }
    Ok(size_bytes.div_ceil(size_of::<u64>()))
}

/// Returns the number of elements of `f32` tensors of these shapes.
///
/// # Errors
/// If the tensors exceed the address space.
pub fn elements<S: AsRef<[usize]>>(shapes: &[S]) -> Result<usize, String> {
    let count = shapes.iter().try_fold(0_usize, |sum, shape| {
        let of_tensor = shape.as_ref().iter().try_fold(1_usize, |all, &size| all.checked_mul(size))?;
        sum.checked_add(of_tensor)
    });
    let count = count.filter(|&count| count <= isize::MAX as usize / size_of::<f32>());
    count.ok_or_else(|| "the tensors exceed the address space".to_owned())
}

/// Returns the algorithm with this name.
///
/// # Errors
/// If there is none.
pub fn choice(name: &str) -> Result<Choice, String> {
    name.parse().map_err(|error: unisono::select::InvalidChoice| error.to_string())
}

/// Returns a timeout in seconds.
///
/// # Errors
/// If it is not above 0, or exceeds a [`Duration`].
pub fn timeout(seconds: f64) -> Result<Duration, String> {
    let timeout = Duration::try_from_secs_f64(seconds).ok().filter(|timeout| !timeout.is_zero());
    timeout.ok_or_else(|| format!("a timeout of {seconds} s: it must be above 0 and below 2^64"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_that_exceed_the_address_space_are_refused() {
        let half = usize::MAX / 2 + 1;
        assert_eq!(elements(&[vec![2_usize, 3], vec![], vec![5]]), Ok(12));
        for shapes in [vec![vec![half, 2]], vec![vec![half], vec![half]], vec![vec![half / 2]]] {
            assert!(elements(&shapes).unwrap_err().contains("exceed the address space"), "{shapes:?}");
        }
    }

    #[test]
    fn error_of_a_timeout_names_both_limits() {
        assert_eq!(timeout(0.5), Ok(Duration::from_millis(500)));
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e20] {
            assert!(timeout(seconds).unwrap_err().ends_with("above 0 and below 2^64"), "{seconds}");
        }
    }
}
