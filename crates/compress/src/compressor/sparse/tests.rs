//! Tests of sums of pairs over declared nodes, against sums of all elements.

use super::super::tests::on_nodes;
use super::*;

const ELEMENTS: usize = 1000;

/// Returns pairs with integers, so that sums are exact: about `per_mille` of a thousand elements, at different indices on every
/// rank.
fn pairs(rank: usize, per_mille: u32) -> Vec<Pair> {
    let mut random = fastrand::Rng::with_seed(rank as u64 + 1000 * u64::from(per_mille));
    let taken = (0..ELEMENTS as u32).filter(|_| random.u32(..1000) < per_mille).collect::<Vec<_>>();
    taken.into_iter().map(|index| Pair { index, value: random.i32(-1000..1000) as f32 }).collect()
}

/// Returns the result of each leader for these pairs: the bits of the sum, whether it is finite, and whether all elements were
/// sent.
fn summed(own: &[Vec<Pair>]) -> Vec<(Vec<u32>, bool, bool)> {
    on_nodes(&vec![1; own.len()], |comm| {
        // Existing values are ignored.
        let mut values = vec![7.0_f32; ELEMENTS];
        let mut doubling = Doubling::default();
        doubling.sum(comm, &pairs(5, 100), &mut values)?;
        let rank = comm.rank();
        let is_finite = doubling.sum(comm, &own[rank], &mut values)?;
        comm.barrier()?;
        Ok((values.iter().map(|value| value.to_bits()).collect(), is_finite, doubling.is_dense))
    })
}

fn expected(own: &[Vec<Pair>]) -> Vec<u32> {
    let mut sum = vec![0.0; ELEMENTS];
    own.iter().for_each(|pairs| decode_add(&mut sum, pairs));
    sum.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn all_leaders_get_the_sum_of_all_pairs() {
    for leaders in 2..=8 {
        // No pairs, few pairs, enough for sums with more than half of the elements, and all elements.
        for (per_mille, ends_dense) in [(0, Some(false)), (10, Some(false)), (300, None), (1000, Some(true))]
        {
            let own: Vec<_> = (0..leaders).map(|rank| pairs(rank, per_mille)).collect();
            let (sum, ended) = (expected(&own), summed(&own));
            for (found, is_finite, is_dense) in ended {
                assert_eq!(found, sum, "{leaders} leaders, {per_mille} of 1000");
                assert!(
                    is_finite && ends_dense.is_none_or(|dense| dense == is_dense),
                    "{leaders}, {per_mille}"
                );
            }
        }
    }
}

#[test]
fn very_different_numbers_of_pairs_are_summed() {
    for leaders in 2..=8 {
        // Each leader in turn starts with all elements.
        for full in 0..leaders {
            let of_rank = |rank: usize| pairs(rank, if rank == full { 1000 } else { 20 * (rank as u32 % 3) });
            let own: Vec<_> = (0..leaders).map(of_rank).collect();
            let sum = expected(&own);
            assert!(summed(&own).iter().all(|(found, ..)| *found == sum), "{full} of {leaders} leaders");
        }
    }
}

#[test]
fn non_finite_values_have_identical_bits_on_all_leaders() {
    for leaders in 2..=8 {
        let mut own: Vec<_> = (0..leaders).map(|rank| pairs(rank, 100)).collect();
        // Two NaNs with different bits for the same element, on the first and the last leader, and infinity.
        own[0] = vec![Pair { index: 3, value: f32::from_bits(0x7fc0_1234) }, Pair { index: 9, value: 1.0 }];
        own[leaders - 1] = vec![
            Pair { index: 3, value: f32::from_bits(0xffc0_4321) },
            Pair { index: 9, value: f32::INFINITY },
        ];
        let ended = summed(&own);
        assert!(ended.iter().all(|rank| rank.0 == ended[0].0 && !rank.1), "{leaders} leaders");
        let [third, ninth] = [3, 9].map(|index: usize| f32::from_bits(ended[0].0[index]));
        assert!(third.is_nan() && ninth == f32::INFINITY, "{third} and {ninth}");
    }
}

/// Returns the method of this many leaders with this many pairs each.
fn method(leaders: usize, each: usize) -> Method {
    Load { elements: 1000, leaders, most: each, total: leaders * each }.method()
}

#[test]
fn method_with_the_fewest_bytes_is_chosen() {
    // Two leaders send the same bytes either way. From half of the elements on, sending all is smaller.
    assert_eq!([1, 100, 499, 500, 1000].map(|each| method(2, each)), {
        use Method::{AllGather, Dense};
        [AllGather, AllGather, AllGather, Dense, Dense]
    });
    // With few coinciding indices, merging saves nothing. With many it does, and finally sending all elements is smaller.
    assert_eq!(
        [10, 120, 200].map(|each| method(8, each)),
        [Method::AllGather, Method::Doubling, Method::Dense]
    );
    // A leader with many more pairs would delay all others.
    let uneven = Load { elements: 1000, leaders: 8, most: 80, total: 80 + 7 };
    assert_eq!(uneven.method(), Method::Doubling);
    // Folding costs two rounds.
    assert_eq!(method(6, 100), Method::AllGather);
    assert_eq!(Load { elements: 0, leaders: 3, most: 0, total: 0 }.method(), Method::Dense);
}

#[test]
fn rounds_end_at_all_elements() {
    let rounds = |leaders, each| {
        let load = Load { elements: 1000, leaders, most: each, total: leaders * each };
        load.rounds().into_iter().map(f64::round).collect::<Vec<_>>()
    };
    assert_eq!(rounds(8, 500), [4000.0; 3]);
    assert_eq!(rounds(4, 100), [800.0, 1520.0]);
    assert_eq!(rounds(3, 100).len(), 3);
}
