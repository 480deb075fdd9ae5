//! A sharded optimizer has the bits of an unsharded one, a part of its memory, and the same checkpoints.

use unisono::{Algorithm, Choice};
use unisono_train::metrics::VisitOutputs;
use unisono_train::optimizer::OptimizerSettings;
use unisono_train::{
    AdamW, BucketBytes, BucketSettings, Gradients, LossSums, Mirror, Order, Overlap, Parameter, Replica,
    ReplicaError, Share, TrainError, Wire,
};

use super::line::{on_nodes, optimizers};
use super::trainer::run_with;
use unisono_testing::suite::Test;
use unisono_testing::tests;

/// Moves every value towards a number, by gradients whose sums are not exact.
#[derive(Debug)]
pub(crate) struct Many {
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) values: Vec<Vec<f32>>,
    pub(crate) rank: usize,
    pub(crate) passes: usize,
    /// Multiplies a gradient of the fourth array, by the rank and the pass (counted from 1). The machine fails before the last gradient if it is 0.
    pub(crate) factor: fn(usize, usize) -> f32,
}

impl Many {
    /// Parts end inside of parameters, and some parameters belong to one rank only.
    pub(crate) fn new() -> Self {
        let shapes = [vec![37], vec![5, 50], vec![3], vec![70, 9], vec![1], vec![11, 11]];
        let mut parameters: Vec<_> = (0..)
            .zip(shapes)
            .map(|(number, shape)| Parameter::new(format!("array.{number}"), shape))
            .collect();
        parameters[4].is_trained = false;
        let values = parameters.iter().map(|found| vec![0.25; found.count()]).collect();
        Self { parameters, values, rank: 0, passes: 0, factor: |_, _| 1.0 }
    }
}

impl Replica for Many {
    /// The seed of a sample.
    type Batch = usize;

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn pass(&mut self, seed: &usize, gradients: &mut dyn Gradients) -> Result<(), ReplicaError> {
        for (index, values) in self.values.iter_mut().enumerate() {
            gradients.wait_for_param(index, values)?;
        }
        gradients.record_loss(LossSums { targets: 3.0, loss: 1.0, correct: 0.0 });
        self.passes += 1;
        let factor = (self.factor)(self.rank, self.passes);
        for index in (0..self.parameters.len()).rev().filter(|&index| self.parameters[index].is_trained) {
            let slope = |(at, value): (usize, &f32)| {
                let noise = ((at * 7919 + index * 31 + seed * 104_729) % 1009) as f32;
                value + noise.mul_add(0.00137, -0.61)
            };
            let mut slopes: Vec<_> = self.values[index].iter().enumerate().map(slope).collect();
            match index {
                0 if factor == 0.0 => return Err("the machine fails".into()),
                3 => slopes[7] *= factor,
                _ => {}
            }
            gradients.put(index, &mut |gradient, fill| fill.write(gradient, &slopes));
        }
        Ok(())
    }

    fn evaluate(&mut self, _: &usize, _: Option<VisitOutputs<'_>>) -> Result<LossSums, ReplicaError> {
        Ok(LossSums::default())
    }

    fn with_values(&mut self, index: usize, visit: &mut dyn FnMut(&mut [f32])) -> Result<(), ReplicaError> {
        visit(&mut self.values[index]);
        Ok(())
    }

    fn brings_values(&self) -> bool {
        true
    }
}

/// The settings that vary between runs.
#[derive(Clone)]
struct Run {
    nodes: Vec<usize>,
    choice: Choice,
    optimizer: OptimizerSettings,
    buckets: BucketSettings,
    clip_norm: Option<f64>,
}

impl Run {
    fn new(ranks: usize) -> Self {
        let optimizer = OptimizerSettings { weight_decay: 0.01, ..OptimizerSettings::new(AdamW::default()) };
        let buckets = BucketSettings {
            first_bucket_bytes: 64,
            bucket_bytes: BucketBytes::Fixed(1200),
            ..BucketSettings::default()
        };
        Self { nodes: vec![ranks], choice: Choice::Auto, optimizer, buckets, clip_norm: None }
    }

    /// Returns the hash of the parameters after eight steps, the number of reduce-scattered buckets, and the number of elements of optimizer state on
    /// each rank.
    fn ended(&self, shard_optimizer: bool) -> (u64, usize, Vec<usize>) {
        let buckets = BucketSettings { shard_optimizer, ..self.buckets.clone() };
        let ended = on_nodes(&self.nodes, |mut comm| -> Result<_, TrainError> {
            comm.set_choice(self.choice.clone())?;
            let mut mirror =
                Mirror::new(&mut comm, Many::new(), self.optimizer.clone(), &buckets, self.clip_norm)?;
            for step in 0..8 {
                // Two passes, which are added before they are sent.
                let passes = [0, 1].map(|pass| Some(2 * (8 * comm.rank() + step) + pass));
                mirror.step(&mut comm, Share::of(&passes), 0.1, |_| true)?;
            }
            let remembered = mirror.optimizer()?.state().map(|(_, _, values)| values.len()).sum();
            Ok((mirror.hash()?, mirror.buckets().unwrap().scattered(), remembered))
        });
        let ended: Vec<(u64, usize, usize)> = ended.into_iter().map(Result::unwrap).collect();
        assert!(ended.iter().all(|other| other.0 == ended[0].0), "all ranks hold the same");
        (ended[0].0, ended[0].1, ended.into_iter().map(|rank| rank.2).collect())
    }

    /// Returns the number of reduce-scattered buckets. Asserts that the bits equal those of the unsharded run.
    fn scattered(&self) -> usize {
        let (expected, none, _) = self.ended(false);
        let (found, scattered, _) = self.ended(true);
        let Self { nodes, choice, optimizer, buckets, clip_norm } = self;
        assert_eq!(found, expected, "{nodes:?} by {choice}: {optimizer:?}, {buckets:?}, {clip_norm:?}");
        assert_eq!(none, 0);
        scattered
    }
}

fn every_sharded_optimizer_has_the_bits_of_an_unsharded_one() {
    for ranks in [1, 2, 3, 4] {
        for optimizer in optimizers() {
            for algorithm in [Algorithm::Ring, Algorithm::RoundRobin] {
                let run = Run { optimizer: optimizer.clone(), choice: algorithm.into(), ..Run::new(ranks) };
                // The first bucket carries the sums, so it is all-reduced.
                assert_eq!(run.scattered(), if ranks > 1 { 3 } else { 0 });
                let clipped = Run { clip_norm: Some(0.5), ..run.clone() };
                assert_eq!(clipped.scattered(), 0, "a norm needs all");
                assert_ne!(clipped.ended(true).0, run.ended(true).0);
            }
        }
    }
}

fn sharded_optimizer_matches_unsharded_for_every_all_reduce() {
    for ranks in [2, 3, 4] {
        for algorithm in Algorithm::ALL {
            for overlap in [Overlap::Beside, Overlap::Across, Overlap::InTurn] {
                let buckets = BucketSettings { overlap, ..Run::new(ranks).buckets };
                let run = Run { choice: algorithm.into(), buckets, ..Run::new(ranks) };
                let begins_with_it = match algorithm {
                    Algorithm::Ring | Algorithm::RoundRobin => true,
                    Algorithm::Butterfly => ranks.is_power_of_two(),
                    _ => false,
                };
                assert_eq!(run.scattered() > 0, begins_with_it, "{algorithm} on {ranks} ranks");
            }
        }
    }
}

fn sharded_wire_formats_orders_and_nodes_match_unsharded() {
    for wire in ["f32", "bf16", "f16", "int8", "topk:0.1", "powersgd:1"] {
        let wire: Wire = wire.parse().unwrap();
        for nodes in [vec![3], vec![1, 1, 1], vec![2, 1], vec![2, 2]] {
            let buckets = BucketSettings { wire, f16_scale: 0.125, ..Run::new(1).buckets };
            let run = Run { nodes, buckets, choice: Algorithm::Ring.into(), ..Run::new(1) };
            let scattered = run.scattered();
            match wire {
                Wire::F32 => assert_eq!(scattered, 3),
                // The sums have a separate message.
                Wire::Bf16 | Wire::F16 => assert_eq!(scattered, 4),
                Wire::Compressed(_) => assert_eq!(scattered, 0),
            }
        }
    }
    let tree = BucketSettings { order: Order::Tree, ..Run::new(1).buckets };
    for ranks in [2, 4] {
        assert_eq!(Run { buckets: tree.clone(), ..Run::new(ranks) }.scattered(), 0);
    }
}

fn each_rank_holds_only_the_optimizer_state_of_its_part() {
    let trained: usize =
        Many::new().parameters.iter().filter(|found| found.is_trained).map(Parameter::count).sum();
    for ranks in [1, 2, 3, 4] {
        let (_, _, unsharded) = Run::new(ranks).ended(false);
        assert_eq!(unsharded, vec![2 * trained; ranks]);
        let (_, _, sharded) = Run::new(ranks).ended(true);
        assert_eq!(sharded.iter().sum::<usize>(), 2 * trained, "each element is one rank's");
        // In each of four buckets, the padding and the sums may belong to another rank.
        let most = 2 * (trained.div_ceil(ranks) + 4 * 16 * 3);
        assert!(sharded.iter().all(|&count| count <= most), "{ranks} ranks: {sharded:?} of {trained}");
    }
}

fn checkpoint_resumes_sharded_or_unsharded_on_any_number_of_ranks() {
    let buckets = |shard_optimizer| BucketSettings {
        shard_optimizer,
        order: Order::Tree,
        first_bucket_bytes: 1,
        bucket_bytes: BucketBytes::Fixed(1),
        ..BucketSettings::default()
    };
    let run = |ranks: usize, sharded, directory: &std::path::Path, fails_after| {
        unisono::threads(ranks, |mut comm| {
            comm.set_timeout(std::time::Duration::from_secs(20));
            run_with(&mut comm, buckets(sharded), Some(directory), true, fails_after, |_, _| ())
        })
    };
    let whole = tempfile::tempdir().unwrap();
    let undisturbed = run(2, false, whole.path(), usize::MAX)[0].clone().unwrap().0.parameters_hash;
    for (before, after) in
        [((4, true), (2, false)), ((2, false), (4, true)), ((2, true), (1, true)), ((4, true), (4, true))]
    {
        let directory = tempfile::tempdir().unwrap();
        let failed = run(before.0, before.1, directory.path(), 14);
        assert!(failed.iter().any(|ended| ended.as_ref().unwrap_err().contains("the machine fails")));
        for ended in run(after.0, after.1, directory.path(), usize::MAX) {
            assert_eq!(ended.unwrap().0.parameters_hash, undisturbed, "{before:?} then {after:?}");
        }
        let last = |place: &std::path::Path| {
            let step = std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path());
            let newest = step.filter(|path| path.is_dir()).max().unwrap();
            std::fs::read(newest.join("optimizer.safetensors")).unwrap()
        };
        assert_eq!(last(directory.path()), last(whole.path()), "the same bytes");
    }
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        every_sharded_optimizer_has_the_bits_of_an_unsharded_one,
        sharded_optimizer_matches_unsharded_for_every_all_reduce,
        sharded_wire_formats_orders_and_nodes_match_unsharded,
        each_rank_holds_only_the_optimizer_state_of_its_part,
        checkpoint_resumes_sharded_or_unsharded_on_any_number_of_ranks,
    ]
}
