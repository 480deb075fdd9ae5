//! Updates as buckets arrive, during the backward passes of other ranks and the next forward pass.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use unisono::Algorithm;
use unisono_train::metrics::VisitOutputs;
use unisono_train::optimizer::OptimizerSettings;
use unisono_train::{
    BucketBytes, BucketSettings, Gradients, LossSums, Mirror, Order, Overlap, Parameter, Replica,
    ReplicaError, Share, TrainError,
};

use super::line::{on_nodes, optimizers, sgd};
use super::sharded::Many;
use unisono_testing::suite::Test;
use unisono_testing::tests;

/// Returns settings with one bucket per array.
fn buckets(overlap: Overlap) -> BucketSettings {
    BucketSettings {
        overlap,
        first_bucket_bytes: 1,
        bucket_bytes: BucketBytes::Fixed(1),
        ..BucketSettings::default()
    }
}

/// Four arrays of one number, whose pass may wait for an event on another rank.
struct Steps {
    parameters: Vec<Parameter>,
    values: Vec<Vec<f32>>,
    step: usize,
    /// The order in which gradients are put.
    puts: [usize; 4],
    /// The step and index of the gradient before which a pass waits, and the event that it waits for.
    waits: Option<((usize, usize), Receiver<()>)>,
    /// Receives the step and the index of each use of a parameter.
    sees: Box<dyn FnMut(usize, usize) + Send>,
}

impl Steps {
    fn new(puts: [usize; 4]) -> Self {
        let parameters = (0..4).map(|number| Parameter::new(format!("array.{number}"), [1])).collect();
        Self { parameters, values: vec![vec![1.0]; 4], step: 0, puts, waits: None, sees: Box::new(|_, _| ()) }
    }
}

impl Replica for Steps {
    type Batch = ();

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn pass(&mut self, (): &(), gradients: &mut dyn Gradients) -> Result<(), ReplicaError> {
        self.step += 1;
        for (index, values) in self.values.iter_mut().enumerate() {
            gradients.wait_for_param(index, values)?;
            (self.sees)(self.step, index);
        }
        gradients.record_loss(LossSums { targets: 1.0, loss: 1.0, correct: 0.0 });
        for index in self.puts {
            if let Some((until, told)) = &self.waits
                && *until == (self.step, index)
            {
                told.recv_timeout(Duration::from_secs(20))
                    .map_err(|_| "the other rank waits for all buckets")?;
            }
            let slope = self.values[index][0];
            gradients.put(index, &mut |gradient, fill| fill.write(gradient, &[slope]));
        }
        Ok(())
    }

    fn evaluate(&mut self, (): &(), _: Option<VisitOutputs<'_>>) -> Result<LossSums, ReplicaError> {
        Ok(LossSums::default())
    }

    fn with_values(&mut self, index: usize, visit: &mut dyn FnMut(&mut [f32])) -> Result<(), ReplicaError> {
        visit(&mut self.values[index]);
        (self.sees)(self.step, index);
        Ok(())
    }

    fn brings_values(&self) -> bool {
        true
    }
}

/// Makes five steps on two ranks. Rank 1 delays the gradient `until`, a step and an index, until rank 0 has used the parameter `seen`, a step and an
/// index.
fn five_steps(overlap: Overlap, puts: [usize; 4], until: (usize, usize), seen: (usize, usize)) {
    let (tells, told) = channel();
    let ends: [Mutex<Option<End>>; 2] = [End::Tells(tells), End::Told(told)].map(|end| Mutex::new(Some(end)));
    let ended = on_nodes(&[1, 1], |mut comm| -> Result<_, TrainError> {
        let mut replica = Steps::new(puts);
        match ends[comm.rank()].lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(End::Tells(tells)) => {
                replica.sees = Box::new(move |step, index| {
                    if (step, index) == seen {
                        // The other rank receives only once.
                        let _ = tells.send(());
                    }
                });
            }
            Some(End::Told(told)) => replica.waits = Some((until, told)),
            None => unreachable!("each rank has an end"),
        }
        let mut mirror = Mirror::new(&mut comm, replica, sgd(), &buckets(overlap), None)?;
        let made =
            (0..5).try_for_each(|_| mirror.step(&mut comm, Share::of(&[Some(())]), 0.1, |_| true).map(drop));
        if let Err(error) = &made {
            comm.fail(&error.to_string());
        }
        made?;
        mirror.hash()
    });
    let ended: Vec<u64> = ended.into_iter().map(Result::unwrap).collect();
    assert_eq!(ended[0], ended[1]);
}

enum End {
    Tells(Sender<()>),
    Told(Receiver<()>),
}

fn bucket_is_updated_while_others_are_in_flight() {
    // The last array is in the first bucket, and the first array in the last.
    for overlap in [Overlap::Beside, Overlap::Across] {
        five_steps(overlap, [3, 2, 1, 0], (1, 0), (1, 3));
    }
}

fn forward_pass_begins_while_later_buckets_are_in_flight() {
    // From the third step on, buckets are launched in the order of these gradients.
    let puts = [3, 0, 1, 2];
    five_steps(Overlap::Across, puts, (3, 2), (4, 0));
    five_steps(Overlap::Across, puts, (3, 2), (4, 1));
    five_steps(Overlap::Across, puts, (3, 1), (4, 0));
}

/// Returns the hash after nine steps.
fn ended(
    nodes: &[usize],
    optimizer: &OptimizerSettings,
    settings: &BucketSettings,
    clip_norm: Option<f64>,
) -> u64 {
    let ended = on_nodes(nodes, |mut comm| -> Result<_, TrainError> {
        comm.set_choice(Algorithm::Ring)?;
        let mut mirror = Mirror::new(&mut comm, Many::new(), optimizer.clone(), settings, clip_norm)?;
        for step in 0..9 {
            let batch = |pass| Some(2 * (8 * comm.rank() + step) + pass);
            let passes = match step {
                // One rank has no data.
                3 | 4 if comm.rank() == 0 => vec![],
                5 => vec![batch(0)],
                _ => vec![batch(0), batch(1)],
            };
            // A step without an update leaves the deferred updates of the previous step.
            mirror.step(&mut comm, Share::of(&passes), 0.1, |_| step != 6)?;
            if step == 7 {
                mirror.settle()?;
                assert_eq!(mirror.replica().values.len(), 6);
            }
        }
        let steps = mirror.optimizer()?.steps();
        Ok((mirror.hash()?, steps))
    });
    let ended: Vec<(u64, u64)> = ended.into_iter().map(Result::unwrap).collect();
    assert!(ended.iter().all(|other| *other == ended[0]), "all ranks hold the same: {ended:?}");
    ended[0].0
}

fn overlapping_steps_have_the_bits_of_blocking_steps() {
    for nodes in [&[1][..], &[2], &[3], &[1, 1], &[1, 1, 1], &[2, 1]] {
        for (optimizer, shard_optimizer) in
            optimizers().iter().flat_map(|optimizer| [false, true].map(|is| (optimizer, is)))
        {
            for wire in ["f32", "bf16", "int8", "powersgd:1"] {
                let with = |overlap| BucketSettings {
                    wire: wire.parse().unwrap(),
                    shard_optimizer,
                    ..buckets(overlap)
                };
                let late = ended(nodes, optimizer, &with(Overlap::Beside), None);
                let early = ended(nodes, optimizer, &with(Overlap::Across), None);
                assert_eq!(early, late, "{nodes:?}, {optimizer:?}, {wire}, {shard_optimizer}");
            }
        }
    }
    let tree = |overlap| BucketSettings { order: Order::Tree, ..buckets(overlap) };
    let clip = Some(0.5);
    for (nodes, settings, clip_norm) in
        [(&[1, 1][..], &tree as &dyn Fn(Overlap) -> BucketSettings, None), (&[1, 1, 1], &buckets, clip)]
    {
        let late = ended(nodes, &sgd(), &settings(Overlap::Beside), clip_norm);
        assert_eq!(ended(nodes, &sgd(), &settings(Overlap::Across), clip_norm), late, "{nodes:?}");
    }
}

/// Returns the result of a rank's run. Like the trainer, a rank reports its error to the others.
fn failed(nodes: &[usize], settings: &BucketSettings, factor: fn(usize, usize) -> f32) -> Vec<TrainError> {
    let ended = on_nodes(nodes, |mut comm| {
        comm.set_timeout(Duration::from_secs(20));
        let rank = comm.rank();
        let replica = Many { rank, factor, ..Many::new() };
        let mut mirror = Mirror::new(&mut comm, replica, sgd(), settings, None)?;
        let made = (0..9).try_for_each(|step| {
            mirror.step(&mut comm, Share::of(&[Some(9 * rank + step)]), 0.1, |_| true).map(drop)
        });
        let made = made.and_then(|()| mirror.settle());
        if let Err(error) = &made
            && !matches!(error, TrainError::NotFinite { .. })
        {
            comm.fail(&error.to_string());
        }
        made
    });
    ended.into_iter().map(Result::unwrap_err).collect()
}

fn failed_rank_is_named_on_all_ranks() {
    for nodes in [&[1, 1, 1][..], &[2, 1], &[3]] {
        for shard_optimizer in [false, true] {
            let settings = BucketSettings { shard_optimizer, ..buckets(Overlap::Across) };
            let ended = failed(nodes, &settings, |rank, step| if (rank, step) == (2, 6) { 0.0 } else { 1.0 });
            for (rank, error) in ended.iter().enumerate() {
                let said = error.to_string();
                assert!(said.contains("the machine fails"), "{nodes:?}, rank {rank}: {said}");
                assert!(rank == 2 || said.contains("rank 2 failed"), "{nodes:?}, rank {rank}: {said}");
            }
        }
    }
}

fn late_gradient_that_is_not_finite_is_named_on_all_ranks() {
    for format in ["f32", "int8", "topk:0.1", "powersgd:1"] {
        // Without compression, the owner of a part detects the value after its update, and informs the other ranks.
        for shard_optimizer in [false, true].into_iter().filter(|&sharded| !sharded || format != "f32") {
            let settings =
                BucketSettings { wire: format.parse().unwrap(), shard_optimizer, ..buckets(Overlap::Across) };
            let infinite = |rank, step| if (rank, step) == (1, 6) { f32::INFINITY } else { 1.0 };
            for error in failed(&[1, 1, 1], &settings, infinite) {
                assert!(
                    matches!(&error, TrainError::NotFinite { parameter, .. } if parameter == "array.3"),
                    "{format}: {error}"
                );
            }
        }
    }
}

fn replica_with_deferred_updates_panics() {
    let said = on_nodes(&[1, 1], |mut comm| {
        let mut mirror =
            Mirror::new(&mut comm, Steps::new([3, 0, 1, 2]), sgd(), &buckets(Overlap::Across), None).unwrap();
        let mut step = |mirror: &mut Mirror<Steps>| {
            mirror.step(&mut comm, Share::of(&[Some(())]), 0.1, |_| true).unwrap();
        };
        (0..3).for_each(|_| step(&mut mirror));
        let shown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| mirror.replica().step));
        mirror.settle().unwrap();
        (shown.is_err(), mirror.replica().step)
    });
    assert_eq!(said, [(true, 3), (true, 3)]);
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        bucket_is_updated_while_others_are_in_flight,
        forward_pass_begins_while_later_buckets_are_in_flight,
        overlapping_steps_have_the_bits_of_blocking_steps,
        failed_rank_is_named_on_all_ranks,
        late_gradient_that_is_not_finite_is_named_on_all_ranks,
        replica_with_deferred_updates_panics,
    ]
}
