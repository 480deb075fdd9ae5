//! What a server holds: the values of its buckets, and the optimizer's state of them.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use unisono::Registered;

use super::held::Held;
use super::layout::Layout;
use super::message::{Kind, Link, Message};
use super::queue::ShareId;
use super::settings::{ServerSettings, Staleness};
use crate::optimizer::{Optimizer, OptimizerSettings};
use crate::replica::Parameter;

/// The buckets of one server, which several workers use at the same time.
#[derive(Debug)]
pub(super) struct Shard {
    /// In the order in which a backward pass fills them.
    buckets: Vec<Mutex<Bucket>>,
    rules: Rules,
}

/// How gradients become updates.
#[derive(Debug, Clone, Copy)]
struct Rules {
    /// Of a step.
    shares: usize,
    staleness: Staleness,
    damps: bool,
}

#[derive(Debug)]
pub(super) struct Bucket {
    /// Its parameters, and where they are in the bucket.
    members: Vec<(usize, Range<usize>)>,
    values: Vec<f32>,
    optimizer: Optimizer,
    /// How many updates it has had since the run began here.
    updates: u64,
    epoch: u64,
    /// Shares of this epoch that arrived: one comes again if its worker was lost before it could say so.
    arrived: HashSet<ShareId>,
    /// Gradients that wait for those of the other shares of their step, with their targets.
    waiting: Vec<Option<(f64, Vec<f32>)>>,
}

/// A client's side of a shard: where its gradients arrive, and what its last values lacked.
#[derive(Debug)]
pub(super) struct Visit {
    buffers: Vec<Registered<f32>>,
    /// The updates of each bucket when it was pulled.
    pulled: Vec<u64>,
}

impl Shard {
    /// The buckets of a server, whose values are still to be [restored](Shard::restore).
    pub(super) fn new(
        parameters: &[Parameter],
        layout: &Layout,
        server: usize,
        optimizer: OptimizerSettings,
        shares: usize,
        settings: ServerSettings,
    ) -> unisono::Result<Self> {
        let plan = layout.ledger(parameters).plan;
        let bucket = |bucket: usize| {
            let members: Vec<_> = plan.members[bucket]
                .iter()
                .map(|&index| (index, plan.place(index).expect("it is trained").range.clone()))
                .collect();
            let each = members.iter().map(|(index, range)| (range.len(), parameters[*index].shape.len() < 2));
            Ok(Mutex::new(Bucket {
                values: vec![0.0; plan.counts[bucket]],
                optimizer: Optimizer::new(optimizer, each)?,
                updates: 0,
                epoch: 0,
                arrived: HashSet::new(),
                waiting: vec![None; shares],
                members,
            }))
        };
        let ServerSettings { staleness, damps, .. } = settings;
        let buckets = layout.of(server).map(bucket).collect::<unisono::Result<_>>()?;
        Ok(Self { buckets, rules: Rules { shares, staleness, damps } })
    }

    /// The place of a client, over its link.
    pub(super) fn visit(&self, link: &Link) -> unisono::Result<Visit> {
        let buffer = |bucket: &Mutex<Bucket>| link.comm.alloc(lock(bucket).values.len());
        let buffers = self.buckets.iter().map(buffer).collect::<unisono::Result<_>>()?;
        Ok(Visit { buffers, pulled: vec![0; self.buckets.len()] })
    }

    /// Sends all values, in the order in which a forward pass needs them.
    pub(super) fn give(&self, link: &mut Link, visit: &mut Visit) -> unisono::Result<()> {
        for (number, bucket) in self.buckets.iter().enumerate().rev() {
            {
                let bucket = lock(bucket);
                visit.buffers[number].copy_from_slice(&bucket.values);
                visit.pulled[number] = bucket.updates;
            }
            link.comm.send(&visit.buffers[number], link.other())?;
        }
        Ok(())
    }

    /// Receives the gradients of a share, and updates the parameters with them, or with those of the whole step once it has all. Returns
    /// how many updates the first bucket has had since this client pulled it.
    pub(super) fn take(&self, link: &mut Link, visit: &mut Visit, push: &Message) -> unisono::Result<u64> {
        let mut missed = 0;
        for (number, bucket) in self.buckets.iter().enumerate() {
            let gradient = &mut visit.buffers[number];
            link.comm.receive(gradient, link.other())?;
            let mut bucket = lock(bucket);
            let lacks = bucket.updates - visit.pulled[number];
            if number == 0 {
                missed = lacks;
            }
            bucket.take(gradient, push, lacks, self.rules);
        }
        link.tell(Message::new(Kind::Done))?;
        Ok(missed)
    }

    /// What all buckets hold.
    pub(super) fn read(&self) -> Vec<Held> {
        self.buckets.iter().map(|bucket| lock(bucket).read()).collect()
    }

    /// Sets what all buckets hold.
    ///
    /// # Panics
    /// If it is of another model.
    pub(super) fn restore(&self, held: &[Held]) {
        self.buckets.iter().zip(held).for_each(|(bucket, held)| lock(bucket).restore(held));
    }
}

impl Bucket {
    fn read(&self) -> Held {
        let kind = self.optimizer.settings().kind;
        let mut held = Held::zeros(self.values.len(), kind.moments().len());
        for (name, place, values) in self.optimizer.state() {
            let moment = kind.moments().iter().position(|&other| other == name).expect("it is of this kind");
            held.moments[moment][self.members[place].1.clone()].copy_from_slice(values);
        }
        Held { values: self.values.clone(), updates: self.optimizer.steps(), ..held }
    }

    fn restore(&mut self, held: &Held) {
        self.values.copy_from_slice(&held.values);
        let names = self.optimizer.settings().kind.moments();
        let of_moment = |(&name, moment): (&&'static str, _)| {
            let moment: &Vec<f32> = moment;
            let members = self.members.iter().enumerate();
            members.map(move |(place, (_, range))| (name, place, &moment[range.clone()])).collect::<Vec<_>>()
        };
        let state: Vec<_> = names.iter().zip(&held.moments).flat_map(of_moment).collect();
        self.optimizer.restore(held.updates, state).expect("it has the layout of this bucket");
    }

    fn take(&mut self, gradient: &[f32], push: &Message, missed: u64, rules: Rules) {
        let share = ShareId { step: push.step as usize, number: push.number as usize };
        if self.epoch != push.epoch {
            self.epoch = push.epoch;
            self.arrived.clear();
        }
        if !self.arrived.insert(share) {
            return;
        }
        if rules.staleness == Staleness::Steps(0) {
            self.waiting[share.number] = Some((push.targets, gradient.to_vec()));
            if self.waiting.iter().all(Option::is_some) {
                self.update_by_step(push.rate);
            }
        } else if push.targets > 0.0 {
            // All shares of a step together move parameters as far as one update with their mean.
            let steps_missed = (missed / rules.shares as u64) as f64;
            let damping = if rules.damps { 1.0 / (1.0 + steps_missed) } else { 1.0 };
            let rate = push.rate * damping / rules.shares as f64;
            self.update(gradient, push.targets, rate);
        }
    }

    /// Updates with the mean of all shares, summed as `master-worker` does: to the first, the others from the last on.
    fn update_by_step(&mut self, rate: f64) {
        let mut shares = self.waiting.iter_mut().map(|share| share.take().expect("all are here"));
        let (mut targets, mut sum) = shares.next().expect("a step has a share");
        for (of_share, gradient) in shares.rev() {
            targets += of_share;
            sum.iter_mut().zip(&gradient).for_each(|(sum, value)| *sum += value);
        }
        if targets > 0.0 {
            self.update(&sum, targets, rate);
        }
    }

    fn update(&mut self, gradient: &[f32], targets: f64, rate: f64) {
        let Self { members, values, optimizer, .. } = self;
        optimizer.begin_step();
        for (place, (_, range)) in members.iter().enumerate() {
            let (values, gradient) = (&mut values[range.clone()], &gradient[range.clone()]);
            optimizer.update(place, values, gradient, (1.0 / targets) as f32, rate as f32);
        }
        self.updates += 1;
    }
}

fn lock(bucket: &Mutex<Bucket>) -> MutexGuard<'_, Bucket> {
    // A thread that panics ends the run.
    bucket.lock().unwrap_or_else(PoisonError::into_inner)
}
