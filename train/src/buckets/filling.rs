//! A pass that fills the buckets.

use super::{Buckets, Sums};
use crate::replica::{Fill, Gradients, Tally};
use unisono::{Communicator, Error};

/// The position of a pass in its step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// Its number, from 0.
    pub number: usize,
    /// The number of passes of the step on this rank.
    pub of: usize,
    /// Whether this rank has no more data, and only takes part in the collectives.
    pub is_out_of_data: bool,
    /// Whether this rank was asked to stop. The last pass of a step decides.
    pub asks_to_stop: bool,
}

impl Pass {
    /// The only pass of a step.
    pub const ONLY: Self = Self { number: 0, of: 1, is_out_of_data: false, asks_to_stop: false };

    pub(crate) fn is_last(self) -> bool {
        self.number + 1 == self.of
    }
}

/// Receives the gradients of one pass. [`Filling::end`] ends it.
#[derive(Debug)]
#[must_use = "a pass that does not end sends nothing, and the other ranks wait"]
pub struct Filling<'a> {
    buckets: &'a mut Buckets,
    comm: &'a mut Communicator,
    pass: Pass,
    /// By the index of the parameter.
    is_whole: Vec<bool>,
    is_weighed: bool,
    failure: Option<Error>,
}

impl<'a> Filling<'a> {
    pub(super) fn new(buckets: &'a mut Buckets, comm: &'a mut Communicator, pass: Pass) -> Self {
        assert!(pass.number < pass.of, "pass {} of {}", pass.number, pass.of);
        assert!(
            buckets.buckets.iter().all(|bucket| bucket.is_back),
            "a bucket of the step before is on its way"
        );
        assert!(
            buckets.tree.is_none() || pass.of.is_power_of_two(),
            "a step of {} passes: to be added up in a balanced tree they must be a power of two",
            pass.of
        );
        if pass.number == 0 {
            buckets.own = Sums::default();
            buckets.is_filled.fill(false);
            buckets.flights.clear();
            buckets.launched = 0;
        }
        for (bucket, members) in buckets.buckets.iter_mut().zip(&buckets.plan.members) {
            bucket.missing = members.len();
        }
        let is_whole = vec![false; buckets.is_filled.len()];
        Self { buckets, comm, pass, is_whole, is_weighed: false, failure: None }
    }

    /// Ends the pass. A missing gradient counts as zero; returns the indices of these parameters. The
    /// last pass of a step has then launched all buckets.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn end(mut self) -> Result<Vec<usize>, Error> {
        if !self.is_weighed {
            self.weigh(Tally::default());
        }
        let trained: Vec<_> = self.buckets.plan.trained().collect();
        let without: Vec<_> = trained.into_iter().filter(|&index| !self.is_whole[index]).collect();
        for &index in &without {
            self.put(index, &mut |gradient, fill| {
                if fill == Fill::Set {
                    gradient.fill(0.0);
                }
            });
        }
        self.failure.map_or(Ok(without), Err)
    }

    fn attempt(&mut self, act: impl FnOnce(&mut Buckets, &mut Communicator) -> Result<(), Error>) {
        if self.failure.is_none() {
            self.failure = act(self.buckets, self.comm).err();
        }
    }
}

impl Gradients for Filling<'_> {
    fn weigh(&mut self, tally: Tally) {
        assert!(!self.is_weighed, "a pass is weighed once");
        self.is_weighed = true;
        let Pass { number, is_out_of_data, asks_to_stop, .. } = self.pass;
        let buckets = &mut *self.buckets;
        match &mut buckets.tree {
            Some(tree) => buckets.own = tree.carry_sums(number, Sums { tally, ..Sums::default() }),
            None => buckets.own.tally += tally,
        }
        // Of the rank, and not of a pass.
        buckets.own.ranks_out_of_data = f64::from(u8::from(is_out_of_data));
        buckets.own.ranks_to_stop = f64::from(u8::from(asks_to_stop));
        if self.pass.is_last() {
            self.attempt(Buckets::send_sums);
        }
    }

    fn put(&mut self, index: usize, write: &mut dyn FnMut(&mut [f32], Fill)) {
        let Pass { number, .. } = self.pass;
        let buckets = &mut *self.buckets;
        let name = &buckets.names[index];
        assert!(self.is_weighed, "the gradient of {name} was put before the pass was weighed");
        assert!(!self.is_whole[index], "the gradient of {name} was put twice in one pass");
        self.is_whole[index] = true;
        let place = buckets.plan.place(index, &buckets.names).clone();
        let bucket = &mut buckets.buckets[place.bucket];
        match &mut buckets.tree {
            None => {
                let fill = if buckets.is_filled[index] { Fill::Add } else { Fill::Set };
                write(&mut bucket.gradients.values_mut()[place.range], fill);
            }
            Some(tree) if self.pass.is_last() => {
                let gradient = &mut bucket.gradients.values_mut()[place.range];
                write(gradient, Fill::Set);
                tree.carry(number, index, gradient);
            }
            Some(tree) => {
                let mut gradient = std::mem::take(tree.waiting(number, index, place.range.len()));
                write(&mut gradient, Fill::Set);
                tree.carry(number, index, &mut gradient);
                *tree.waiting(number, index, place.range.len()) = gradient;
            }
        }
        buckets.is_filled[index] = true;
        bucket.missing -= 1;
        if self.pass.is_last() {
            self.attempt(Buckets::launch);
        }
    }
}
