//! The data of a server: the values of its buckets, and their optimizer state.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::Mutex;

use unisono::Registered;
use unisono_data::Stop;
use unisono_data::pipeline::lock;

use super::layout::Layout;
use super::message::{Kind, Link, Message};
use super::queue::ShareId;
use super::settings::{ServerSettings, Staleness};
use unisono_train::internals::HalfBytes;
use unisono_train::optimizer::{Exploded, Optimizer};
use unisono_train::{OptimizerSettings, Parameter};

/// The buckets of one server, which several workers use concurrently.
#[derive(Debug)]
pub(super) struct Shard {
    /// The buckets, in the order in which a backward pass fills them.
    buckets: Vec<Mutex<Bucket>>,
    /// The format to which gradients were rounded, if any.
    half: Option<HalfBytes>,
    rules: Rules,
    /// The request to this server to stop. Workers learn it from the replies to their gradients, and inform the coordinator.
    stop: Stop,
}

/// The rules that turn gradients into updates.
#[derive(Debug, Clone, Copy)]
struct Rules {
    /// The number of shares of a step.
    shares: usize,
    settings: ServerSettings,
    /// The factor of a gradient that updates the parameters by itself.
    scale: f64,
}

/// Returns the optimizer for updates by single shares, and the factor of their gradients. The updates of a whole step decay the optimizer's means,
/// and move parameters, as one synchronous step does. Its state is therefore comparable. With the usual rule, more workers would shorten the history
/// of the means, and a gradient that misses a few updates would miss a large part of it.
fn per_share(settings: &OptimizerSettings, shares: usize) -> (OptimizerSettings, f64) {
    let (rule, scale) = settings.rule.per_share(shares).expect("`Part::refusal` excludes others");
    (
        OptimizerSettings { rule, weight_decay: settings.weight_decay * scale as f32, ..settings.clone() },
        scale,
    )
}

/// A set of shares, stored as runs of consecutive steps of each series, by the series and the end of the run. Workers process the shares of a series in
/// order, so the set does not grow with the number of steps.
#[derive(Debug, Default)]
struct Arrived(BTreeMap<(usize, usize), usize>);

impl Arrived {
    /// Adds a share. Returns whether it is new.
    fn insert(&mut self, ShareId { step, number }: ShareId) -> bool {
        let next = self.0.range((number, step + 1)..).next().filter(|((series, _), _)| *series == number);
        let next = next.map(|(&key, &start)| (key, start));
        if next.is_some_and(|(_, start)| start <= step) {
            return false;
        }
        let start = self.0.remove(&(number, step)).unwrap_or(step);
        // Joins the run that ends here and the one that begins after it.
        match next.filter(|&(_, next)| next == step + 1) {
            Some((key, _)) => self.0.insert(key, start),
            None => self.0.insert((number, step + 1), start),
        };
        true
    }
}

#[derive(Debug)]
pub(super) struct Bucket {
    /// Its parameters, and their ranges in the bucket.
    members: Vec<(usize, Range<usize>)>,
    values: Vec<f32>,
    optimizer: Optimizer,
    epoch: u64,
    /// The shares of this epoch that have arrived. A share arrives twice if its worker was lost before it could report it.
    arrived: Arrived,
    /// Gradients that wait for the other shares of their step, with their numbers of targets.
    waiting: Vec<Option<(f64, Vec<f32>)>>,
}

/// The content of a bucket. All arrays have the bucket's layout.
#[derive(Debug, Clone)]
pub(super) struct ShardState {
    pub(super) values: Vec<f32>,
    /// The arrays of optimizer state, in the order of their names.
    pub(super) moments: Vec<Vec<f32>>,
    /// The number of updates that the optimizer has made.
    pub(super) updates: u64,
}

impl ShardState {
    pub(super) fn zeros(count: usize, moments: usize) -> Self {
        Self { values: vec![0.0; count], moments: vec![vec![0.0; count]; moments], updates: 0 }
    }

    pub(super) fn send(&self, link: &mut Link) -> unisono::Result<()> {
        let other = link.other();
        link.comm.send(&[self.updates], other)?;
        [&self.values].into_iter().chain(&self.moments).try_for_each(|array| link.comm.send(array, other))
    }

    /// Receives the state that the other side [sends](ShardState::send), which must have the same sizes.
    pub(super) fn receive(&mut self, link: &mut Link) -> unisono::Result<()> {
        let (other, mut updates) = (link.other(), [0_u64]);
        link.comm.receive(&mut updates, other)?;
        [self.updates] = updates;
        let mut arrays = [&mut self.values].into_iter().chain(&mut self.moments);
        arrays.try_for_each(|array| link.comm.receive(array, other))
    }
}

/// The result of an update. The error is the index of the first parameter that is not finite.
type Updated = Result<(), (usize, Exploded)>;

/// A client's state on a shard: its receive buffers, and the versions of the values that it pulled.
#[derive(Debug)]
pub(super) struct Visit {
    /// The buffer for values and gradients, as large as the largest bucket.
    buffer: Registered<f32>,
    /// The buffer for rounded gradients, as large as the largest bucket.
    encoded: Registered<u8>,
    /// The number of updates of each bucket when it was pulled.
    pulled: Vec<u64>,
}

impl Shard {
    /// Creates the buckets of a server, whose values are still to be [restored](Shard::restore).
    pub(super) fn new(
        parameters: &[Parameter],
        layout: &Layout,
        server: usize,
        optimizer: OptimizerSettings,
        shares: usize,
        settings: ServerSettings,
        stop: Stop,
    ) -> unisono::Result<Self> {
        let (optimizer, scale) = match settings.staleness {
            Staleness::Steps(0) => (optimizer, 1.0),
            _ => per_share(&optimizer, shares),
        };
        let plan = layout.ledger(parameters).plan;
        let bucket = |bucket: usize| {
            let members: Vec<_> = plan.members[bucket]
                .iter()
                .map(|&index| (index, plan.place(index).expect("it is trained").range.clone()))
                .collect();
            let each = members.iter().map(|(index, range)| {
                let Parameter { name, shape, .. } = &parameters[*index];
                (range.len(), (optimizer.factors)(name, shape))
            });
            Ok(Mutex::new(Bucket {
                values: vec![0.0; plan.counts[bucket]],
                optimizer: Optimizer::new(optimizer.clone(), each)?,
                epoch: 0,
                arrived: Arrived::default(),
                waiting: vec![None; shares],
                members,
            }))
        };
        let buckets = layout.of(server).map(bucket).collect::<unisono::Result<_>>()?;
        let half = HalfBytes::of(&layout.settings);
        Ok(Self { buckets, half, rules: Rules { shares, settings, scale }, stop })
    }

    pub(super) fn visit(&self, link: &Link) -> unisono::Result<Visit> {
        let largest = self.buckets.iter().map(|bucket| lock(bucket).values.len()).max().unwrap_or(0);
        let bytes = self.half.as_ref().map_or(0, |_| HalfBytes::size_bytes(largest));
        let (buffer, encoded) = (link.comm.alloc(largest)?, link.comm.alloc(bytes)?);
        Ok(Visit { buffer, encoded, pulled: vec![0; self.buckets.len()] })
    }

    /// Sends all values, in the order in which a forward pass needs them.
    pub(super) fn give(&self, link: &mut Link, visit: &mut Visit) -> unisono::Result<()> {
        for (number, bucket) in self.buckets.iter().enumerate().rev() {
            let count = {
                let bucket = lock(bucket);
                visit.buffer[..bucket.values.len()].copy_from_slice(&bucket.values);
                visit.pulled[number] = bucket.optimizer.steps();
                bucket.values.len()
            };
            link.comm.send(&visit.buffer[..count], link.other())?;
        }
        Ok(())
    }

    /// Receives the gradients of a share and updates the parameters. Without staleness, the update waits for all shares of the step. Returns the
    /// number of updates of the first bucket since this client pulled it. The reply names a parameter that is not finite afterwards.
    pub(super) fn take(&self, link: &mut Link, visit: &mut Visit, push: &Message) -> unisono::Result<u64> {
        let (mut missed, mut done) = (0, Message::new(Kind::Done));
        for (number, bucket) in self.buckets.iter().enumerate() {
            let count = lock(bucket).values.len();
            let (gradient, other) = (&mut visit.buffer[..count], link.other());
            match &self.half {
                Some(half) => {
                    let encoded = &mut visit.encoded[..HalfBytes::size_bytes(gradient.len())];
                    link.comm.receive(encoded, other)?;
                    half.decode(encoded, gradient);
                }
                None => link.comm.receive(gradient, other)?,
            }
            let mut bucket = lock(bucket);
            let lacks = bucket.optimizer.steps() - visit.pulled[number];
            if number == 0 {
                missed = lacks;
            }
            if let Err((index, Exploded { largest })) = bucket.take(gradient, push, lacks, self.rules) {
                (done.spoiled, done.largest) = (index as u64 + 1, f64::from(largest));
            }
        }
        done.asks_to_stop = self.stop.is_asked().into();
        link.send(done)?;
        Ok(missed)
    }

    pub(super) fn read(&self) -> Vec<ShardState> {
        self.buckets.iter().map(|bucket| lock(bucket).read()).collect()
    }

    pub(super) fn restore(&self, held: &[ShardState]) {
        self.buckets.iter().zip(held).for_each(|(bucket, held)| lock(bucket).restore(held));
    }
}

impl Bucket {
    fn read(&self) -> ShardState {
        let names = self.optimizer.settings().rule.state_names();
        let mut held = ShardState::zeros(self.values.len(), names.len());
        for (name, place, values) in self.optimizer.state() {
            let moment = names.iter().position(|&other| other == name).expect("it is one of them");
            held.moments[moment][self.members[place].1.clone()].copy_from_slice(values);
        }
        ShardState { values: self.values.clone(), updates: self.optimizer.steps(), ..held }
    }

    fn restore(&mut self, held: &ShardState) {
        self.values.copy_from_slice(&held.values);
        let moments = held.moments.iter();
        let mut state =
            moments.flat_map(|moment| self.members.iter().map(move |(_, range)| &moment[range.clone()]));
        let Ok(()) = self.optimizer.restore(held.updates, &mut |_, _, values| {
            values.copy_from_slice(state.next().expect("it has the layout of this bucket"));
            Ok::<_, Infallible>(())
        });
    }

    fn take(&mut self, gradient: &[f32], push: &Message, missed: u64, rules: Rules) -> Updated {
        let share = ShareId { step: push.step as usize, number: push.number as usize };
        if self.epoch != push.epoch {
            self.epoch = push.epoch;
            self.arrived = Arrived::default();
        }
        if !self.arrived.insert(share) {
            return Ok(());
        }
        if rules.settings.staleness == Staleness::Steps(0) {
            self.waiting[share.number] = Some((push.tally.targets, gradient.to_vec()));
            if self.waiting.iter().all(Option::is_some) {
                return self.update_by_step(push.rate);
            }
        } else if push.tally.targets > 0.0 {
            // All shares of a step together move parameters as far as one update with their mean.
            let steps_missed = (missed / rules.shares as u64) as f64;
            let damping = if rules.settings.damps { 1.0 / (1.0 + steps_missed) } else { 1.0 };
            let rate = push.rate * damping / rules.shares as f64;
            return self.update(gradient, rules.scale / push.tally.targets, rate);
        }
        Ok(())
    }

    /// Updates with the mean of all shares. As in `master-worker`, the other shares are added to the first, from the last on.
    fn update_by_step(&mut self, rate: f64) -> Updated {
        let mut shares = self.waiting.iter_mut().map(|share| share.take().expect("all are here"));
        let (mut targets, mut sum) = shares.next().expect("a step has a share");
        for (of_share, gradient) in shares.rev() {
            targets += of_share;
            sum.iter_mut().zip(&gradient).for_each(|(sum, value)| *sum += value);
        }
        if targets > 0.0 { self.update(&sum, 1.0 / targets, rate) } else { Ok(()) }
    }

    fn update(&mut self, gradient: &[f32], scale: f64, rate: f64) -> Updated {
        let Self { members, values, optimizer, .. } = self;
        optimizer.begin_step();
        let mut updated = Ok(());
        for (place, (index, range)) in members.iter().enumerate() {
            let (values, gradient) = (&mut values[range.clone()], &gradient[range.clone()]);
            let made = optimizer.update(place, values, gradient, scale as f32, rate as f32);
            updated = updated.and(made.map_err(|error| (*index, error)));
        }
        updated
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unisono_train::optimizer::{AdamW, Factors, Sgd};

    /// Returns a value after `steps` steps with a constant gradient, and its velocity or mean. Each step consists of one update per share.
    fn way(usual: &OptimizerSettings, shares: usize, steps: usize) -> (f32, f32) {
        let (settings, scale) = if shares == 1 { (usual.clone(), 1.0) } else { per_share(usual, shares) };
        let mut optimizer = Optimizer::new(settings, [(1, Factors::default())]).unwrap();
        let mut value = [1.0];
        for _ in 0..steps * shares {
            optimizer.begin_step();
            optimizer.update(0, &mut value, &[0.5], scale as f32, 0.001 / shares as f32).unwrap();
        }
        let first = optimizer.state().next().unwrap().2[0];
        (value[0], first)
    }

    #[test]
    fn duplicate_shares_are_detected_in_constant_memory() {
        let (mut arrived, mut expected) = (Arrived::default(), std::collections::HashSet::new());
        // Nearly in order, from step 7 on, with some duplicates.
        for turn in 0..6000 {
            let share = ShareId { step: 7 + ((turn / 3) ^ 5), number: turn * 7 % 3 };
            assert_eq!(arrived.insert(share), expected.insert(share), "{share:?}");
            if turn % 11 == 0 {
                assert!(!arrived.insert(share), "{share:?}");
            }
        }
        assert!(arrived.0.len() < 20, "{}", arrived.0.len());
    }

    #[test]
    fn updates_by_shares_match_the_update_by_the_step() {
        for settings in [OptimizerSettings::new(Sgd::default()), OptimizerSettings::new(AdamW::default())] {
            let settings = OptimizerSettings { weight_decay: 0.01, ..settings };
            let (by_steps, by_shares) = (way(&settings, 1, 100), way(&settings, 4, 100));
            let kind = settings.rule.name();
            assert!(
                (by_steps.0 - by_shares.0).abs() < 0.02 * (1.0 - by_steps.0),
                "{kind}: {by_steps:?} {by_shares:?}"
            );
            assert!((by_steps.1 / by_shares.1 - 1.0).abs() < 0.01, "{kind}: {by_steps:?} {by_shares:?}");
        }
    }
}
