//! A record of the gradients that the passes of a step have put into the buckets, on the host or on a device.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::{BucketSettings, BucketSize, Place, Plan, Sums};
use crate::{Fill, Gradients, LossSums, Parameter, TrainError};
use unisono::{Communicator, Rank};

/// The position of a pass in its step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// Its number, from 0.
    pub number: usize,
    /// The number of passes of the step on this rank.
    pub of: usize,
    /// Whether this rank has no more data, and only takes part in the collectives.
    pub is_out_of_data: bool,
    /// Whether this rank was asked to stop. Only the value of the step's last pass counts.
    pub asks_to_stop: bool,
    /// Whether this rank asks all ranks to save this step.
    pub asks_to_save: bool,
    /// The number of updates that the run has made before this step, the same on all ranks. A [`Mirror`](crate::Mirror) sets it.
    pub updates: u64,
}

impl Pass {
    /// The only pass of a step.
    pub const ONLY: Self = Self {
        number: 0,
        of: 1,
        is_out_of_data: false,
        asks_to_stop: false,
        asks_to_save: false,
        updates: 0,
    };

    /// Returns how its gradients combine with the gradients of earlier passes, which have put each gradient.
    pub fn fill(self) -> Fill {
        if self.number == 0 { Fill::Set } else { Fill::Add }
    }

    /// Returns whether it is the last pass of its step.
    pub fn is_last(self) -> bool {
        self.number + 1 == self.of
    }
}

/// The record of a step on one rank: the gradients that its passes have put, the buckets that are therefore full, and this rank's own sums.
#[derive(Debug)]
pub struct Ledger {
    /// All parameters of the model.
    pub parameters: Vec<Parameter>,
    /// The places of gradients in buckets.
    pub plan: Plan,
    pub(crate) size: BucketSize,
    /// This rank's own part of each bucket, as a range of its elements, if the update is divided among the ranks.
    pub(super) parts: Option<Vec<Range<usize>>>,
    /// The pass that fills the buckets now.
    pub pass: Pass,
    /// The time at which the pass recorded its loss.
    pub weighed: Option<Instant>,
    /// This rank's own sums of this step.
    pub own: Sums,
    /// The order in which buckets are launched, the same on all ranks.
    pub(crate) order: Vec<usize>,
    /// The number of buckets that have been launched.
    pub launched: usize,
    /// The time from the loss of the last pass until each bucket was full.
    pub(crate) filled_after: Vec<Duration>,
    /// Whether the pass has put the gradient of the parameter with this index.
    is_put: Vec<bool>,
    /// The number of gradients of each bucket that the pass has not put yet.
    missing: Vec<usize>,
}

impl Ledger {
    /// Creates a record for buckets of this size, for the gradients of these parameters.
    pub fn new(parameters: &[Parameter], settings: &BucketSettings, size: BucketSize) -> Self {
        let counts = parameters.iter().map(|parameter| parameter.is_trained.then(|| parameter.count()));
        let plan = Plan::new(counts, settings.first_bucket_bytes, size.bytes);
        let buckets = plan.counts.len();
        Self {
            parameters: parameters.to_vec(),
            plan,
            size,
            parts: None,
            pass: Pass::ONLY,
            weighed: None,
            own: Sums::default(),
            order: (0..buckets).collect(),
            launched: buckets,
            filled_after: vec![Duration::ZERO; buckets],
            is_put: vec![false; parameters.len()],
            missing: vec![0; buckets],
        }
    }

    /// Divides the update among the ranks. `counts` are the numbers of elements of the buckets.
    pub fn divide(&mut self, comm: &Communicator, counts: impl IntoIterator<Item = usize>) {
        self.parts = Some(counts.into_iter().map(|count| comm.own_part(count)).collect());
    }

    pub(crate) fn is_divided(&self) -> bool {
        self.parts.is_some()
    }

    /// Returns the elements of a parameter that this rank updates. These are all elements, unless the update is divided. There are none if the
    /// parameter is not trained.
    pub fn own(&self, index: usize) -> Range<usize> {
        let Some(Place { bucket, range }) = self.plan.place(index) else { return 0..0 };
        let Some(parts) = &self.parts else { return 0..range.len() };
        let within = |element: usize| element.clamp(range.start, range.end) - range.start;
        within(parts[*bucket].start)..within(parts[*bucket].end)
    }

    /// Starts a pass.
    ///
    /// # Panics
    /// If the step has no pass of this number, or the previous pass has not put all gradients.
    pub fn begin(&mut self, pass: Pass) {
        assert!(pass.number < pass.of, "pass {} of {}", pass.number, pass.of);
        if pass.number == 0 {
            self.own = Sums::default();
            self.launched = 0;
        } else {
            // Otherwise a gradient could be added to a gradient of another step.
            assert!(
                self.missing.iter().all(|&missing| missing == 0),
                "pass {} has not ended",
                pass.number - 1
            );
        }
        self.pass = pass;
        self.weighed = None;
        self.is_put.fill(false);
        self.missing = self.plan.members.iter().map(Vec::len).collect();
    }

    /// Adds the tally of the pass to this rank's sums.
    ///
    /// # Panics
    /// If the pass has already recorded its loss.
    pub fn record_loss(&mut self, tally: LossSums) {
        assert!(self.weighed.is_none(), "a pass is weighed once");
        self.weighed = Some(Instant::now());
        self.own.tally += tally;
        // Counts ranks, not passes.
        self.own.ranks_out_of_data = f64::from(u8::from(self.pass.is_out_of_data));
        self.own.ranks_to_stop = f64::from(u8::from(self.pass.asks_to_stop));
        self.own.ranks_to_save = f64::from(u8::from(self.pass.asks_to_save));
    }

    /// Records that the pass puts the gradient of this parameter, and returns the gradient's place.
    ///
    /// # Panics
    /// If the pass has not recorded its loss, if it has put this gradient before, or if the parameter is not trained.
    pub fn put(&mut self, index: usize) -> Place {
        let name = &self.parameters[index].name;
        assert!(self.weighed.is_some(), "the gradient of {name} was put before the pass was weighed");
        assert!(!self.is_put[index], "the gradient of {name} was put twice in one pass");
        let place = self.place(index).clone();
        self.is_put[index] = true;
        self.missing[place.bucket] -= 1;
        if self.missing[place.bucket] == 0 {
            self.filled_after[place.bucket] =
                self.weighed.map_or(Duration::ZERO, |weighed| weighed.elapsed());
        }
        place
    }

    /// Returns the indices of trained parameters whose gradients the pass has not put.
    pub fn not_put(&self) -> Vec<usize> {
        let indices = 0..self.is_put.len();
        indices.filter(|&index| self.plan.place(index).is_some() && !self.is_put[index]).collect()
    }

    /// Returns the next bucket to launch, if the last pass of the step has filled it.
    pub fn full(&self) -> Option<usize> {
        let next = *self.order.get(self.launched)?;
        (self.pass.is_last() && self.missing[next] == 0).then_some(next)
    }

    /// Returns the error for a parameter in which a rank has found a value that is not finite or too large.
    pub fn not_finite(
        &self,
        of: &'static str,
        index: usize,
        found: f32,
        (rank, step): (Rank, u64),
    ) -> TrainError {
        let parameter = self.parameters[index].name.clone();
        TrainError::NotFinite { of, parameter, found, rank, step }
    }

    /// Returns the place of a gradient.
    ///
    /// # Panics
    /// If the parameter is not trained.
    pub fn place(&self, index: usize) -> &Place {
        let name = &self.parameters[index].name;
        self.plan.place(index).unwrap_or_else(|| panic!("{name} has no gradient: it is not trained"))
    }
}

/// Ends a pass for a receiver of gradients. Missing gradients count as zero. Returns the indices of their parameters.
pub fn end_pass<G: Gradients>(receiver: &mut G, ledger: impl Fn(&G) -> &Ledger) -> Vec<usize> {
    if ledger(receiver).weighed.is_none() {
        receiver.record_loss(LossSums::default());
    }
    let without = ledger(receiver).not_put();
    for &index in &without {
        receiver.put(index, &mut |gradient, fill| {
            if fill == Fill::Set {
                gradient.fill(0.0);
            }
        });
    }
    without
}

/// Finds the parameters of which no pass with samples of a step has a gradient.
#[derive(Debug, Default)]
pub struct WithoutGradient {
    /// The parameters that no pass of this step has put. `None` before its first pass with samples.
    of_step: Option<BTreeSet<usize>>,
    reported: BTreeSet<usize>,
}

impl WithoutGradient {
    /// Adds the parameters that a pass with samples has not put.
    pub fn add(&mut self, without: Vec<usize>) {
        let without: BTreeSet<usize> = without.into_iter().collect();
        self.of_step = Some(match &self.of_step {
            Some(earlier) => earlier & &without,
            None => without,
        });
    }

    /// Ends a step. Returns the parameters that were not reported before.
    pub fn end_step(&mut self) -> Vec<usize> {
        let found = self.of_step.take().unwrap_or_default();
        found.into_iter().filter(|&index| self.reported.insert(index)).collect()
    }
}
