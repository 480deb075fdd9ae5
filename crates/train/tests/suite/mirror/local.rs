//! Ranks that make local steps, and average their parameters.

use unisono_train::optimizer::OptimizerSettings;
use unisono_train::{AdamW, BucketSettings, LocalSteps, Mirror, Order, Outer, Share, TrainError, Wire};

use super::line::sgd;
use super::sharded::Many;
use unisono_testing::suite::Test;
use unisono_testing::tests;

fn local(steps: u64, outer: Outer) -> BucketSettings {
    BucketSettings { local_steps: Some(LocalSteps { steps, outer }), ..BucketSettings::default() }
}

/// Returns the values of all ranks after this many steps, and the steps after which all ranks held the same values.
fn stepped(
    ranks: usize,
    steps: usize,
    optimizer: &OptimizerSettings,
    buckets: &BucketSettings,
) -> (Vec<Vec<f32>>, Vec<usize>) {
    let ended = unisono::threads(ranks, |mut comm| -> Result<_, TrainError> {
        let mut mirror = Mirror::new(&mut comm, Many::new(), optimizer.clone(), buckets, None)?;
        let mut hashes = Vec::new();
        for step in 0..steps {
            let batch = [Some(100 * comm.rank() + step)];
            mirror.step(&mut comm, Share::of(&batch), 0.1, |_| true)?;
            hashes.push((mirror.hash()?, mirror.is_between_rounds()));
        }
        Ok((mirror.replica().values.concat(), hashes))
    });
    let (values, hashes): (Vec<_>, Vec<_>) = ended.into_iter().map(Result::unwrap).unzip();
    let same = |step: &usize| hashes.iter().all(|of_rank| of_rank[*step].0 == hashes[0][*step].0);
    let same: Vec<usize> = (0..steps).filter(same).collect();
    let said: Vec<usize> = (0..steps).filter(|&step| hashes[0][step].1).collect();
    assert!(ranks == 1 || same == said, "ranks know when they hold the same: {same:?} {said:?}");
    (values, same.into_iter().map(|step| step + 1).collect())
}

fn apart(one: &[f32], other: &[f32]) -> f32 {
    one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max)
}

fn ranks_have_equal_parameters_at_the_end_of_each_round() {
    let adamw = OptimizerSettings::new(AdamW::default());
    for ranks in [2, 3, 4] {
        for outer in [Outer::Average, Outer::Nesterov { rate: 0.7, momentum: 0.9 }] {
            for optimizer in [&sgd(), &adamw] {
                let (_, same) = stepped(ranks, 10, optimizer, &local(3, outer));
                assert_eq!(same, [3, 6, 9], "{ranks} ranks, {outer}");
            }
        }
    }
}

fn rounds_of_one_step_match_gradient_averaging() {
    // Both are linear in the gradients.
    let (together, _) = stepped(3, 12, &sgd(), &BucketSettings::default());
    let (alone, _) = stepped(3, 12, &sgd(), &local(1, Outer::Average));
    assert!(apart(&together[0], &alone[0]) < 1e-5);
    let (outer, _) = stepped(3, 12, &sgd(), &local(1, Outer::Nesterov { rate: 1.0, momentum: 0.0 }));
    assert!(apart(&outer[0], &alone[0]) < 1e-5);
    let (longer, _) = stepped(3, 12, &OptimizerSettings::new(AdamW::default()), &local(4, Outer::Average));
    let (usual, _) = stepped(3, 12, &OptimizerSettings::new(AdamW::default()), &BucketSettings::default());
    assert!(apart(&longer[0], &usual[0]) > 1e-4, "it is another algorithm");
}

fn local_steps_on_one_rank_match_usual_training() {
    let (usual, _) = stepped(1, 7, &sgd(), &BucketSettings::default());
    let (alone, _) = stepped(1, 7, &sgd(), &local(3, Outer::Average));
    assert_eq!(alone, usual);
}

fn end_round_averages_and_starts_a_new_round() {
    let ended = unisono::threads(2, |mut comm| {
        let mut mirror = Mirror::new(&mut comm, Many::new(), sgd(), &local(4, Outer::Average), None).unwrap();
        let step = |mirror: &mut Mirror<Many>, comm: &mut unisono::Communicator| {
            let batch = [Some(comm.rank())];
            mirror.step(comm, Share::of(&batch), 0.1, |_| true).unwrap();
        };
        step(&mut mirror, &mut comm);
        mirror.end_round(&mut comm).unwrap();
        let first = mirror.hash().unwrap();
        mirror.end_round(&mut comm).unwrap();
        assert_eq!(mirror.hash().unwrap(), first, "there is nothing to average");
        (0..4).for_each(|_| step(&mut mirror, &mut comm));
        assert!(mirror.is_between_rounds());
        (first, mirror.hash().unwrap())
    });
    assert_eq!(ended[0], ended[1]);
}

fn rank_without_data_keeps_its_parameters_until_the_round_ends() {
    let ended = unisono::threads(2, |mut comm| {
        let mut mirror = Mirror::new(&mut comm, Many::new(), sgd(), &local(2, Outer::Average), None).unwrap();
        let batch = [(comm.rank() == 0).then_some(1)];
        mirror.step(&mut comm, Share::of(&batch), 0.1, |_| true).unwrap();
        let moved = mirror.replica().values.concat() != Many::new().values.concat();
        mirror.step(&mut comm, Share::of(&batch), 0.1, |_| true).unwrap();
        (moved, mirror.hash().unwrap(), mirror.optimizer().unwrap().steps())
    });
    assert_eq!((ended[0].0, ended[1].0), (true, false));
    assert_eq!((ended[0].1, ended[0].2), (ended[1].1, ended[1].2));
}

fn settings_that_contradict_local_steps_are_refused() {
    let usual = || local(2, Outer::Average);
    for (settings, said) in [
        (BucketSettings { wire: Wire::Bf16, ..usual() }, "--wire bf16"),
        (BucketSettings { shard_optimizer: true, ..usual() }, "--shard-optimizer"),
        (BucketSettings { order: Order::Tree, ..usual() }, "--order world-invariant"),
        (local(0, Outer::Average), "local steps is 0"),
        (local(2, Outer::Nesterov { rate: 0.0, momentum: 0.9 }), "the outer step"),
        (local(2, Outer::Nesterov { rate: 0.7, momentum: f32::NAN }), "`nesterov:0.7,NaN`"),
    ] {
        let refused = unisono::threads(2, |mut comm| {
            Mirror::new(&mut comm, Many::new(), sgd(), &settings, None).unwrap_err().to_string()
        });
        assert!(refused.iter().all(|why| why.contains("local") && why.contains(said)), "{refused:?}");
    }
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        ranks_have_equal_parameters_at_the_end_of_each_round,
        rounds_of_one_step_match_gradient_averaging,
        local_steps_on_one_rank_match_usual_training,
        end_round_averages_and_starts_a_new_round,
        rank_without_data_keeps_its_parameters_until_the_round_ends,
        settings_that_contradict_local_steps_are_refused,
    ]
}
