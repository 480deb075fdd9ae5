//! A pass that fills the buckets.

use std::time::Duration;

use super::{Buckets, Pass, Place, Sums, end_pass};
use crate::{Fill, Gradients, LossSums};
use unisono::{Communicator, Error};

/// Receives the gradients of one pass. [`Filling::end`] ends the pass.
#[derive(Debug)]
#[must_use = "a pass that does not end sends nothing, and the other ranks wait"]
pub struct Filling<'a> {
    pub(crate) buckets: &'a mut Buckets,
    comm: &'a mut Communicator,
    failure: Option<Error>,
}

impl<'a> Filling<'a> {
    /// As [`Buckets::fill`], but buckets of the previous step may be in flight until the pass records its loss.
    pub(crate) fn new(buckets: &'a mut Buckets, comm: &'a mut Communicator, pass: Pass) -> Self {
        assert!(
            buckets.tree.is_none() || pass.of.is_power_of_two(),
            "a step of {} passes: to be added up in a balanced tree they must be a power of two",
            pass.of
        );
        buckets.ledger.begin(pass);
        if pass.number == 0 {
            buckets.flights.clear();
            buckets.not_finite = None;
            buckets.waited = Duration::ZERO;
        }
        let failure = buckets.check().err();
        Self { buckets, comm, failure }
    }

    /// Ends the pass. A missing gradient counts as zero. Returns the indices of parameters without a gradient. After the last pass of a step, all
    /// buckets are launched.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn end(mut self) -> Result<Vec<usize>, Error> {
        let without = end_pass(&mut self, |filling| &filling.buckets.ledger);
        self.failure.map_or(Ok(without), Err)
    }

    fn attempt(&mut self, act: impl FnOnce(&mut Buckets, &mut Communicator) -> Result<(), Error>) {
        if self.failure.is_none()
            && let Err(error) = act(self.buckets, self.comm)
        {
            self.buckets.lost = Some(error.to_string());
            self.failure = Some(error);
        }
    }
}

impl Gradients for Filling<'_> {
    fn record_loss(&mut self, tally: LossSums) {
        let Buckets { ledger, tree, .. } = &mut *self.buckets;
        ledger.record_loss(tally);
        if let Some(tree) = tree {
            ledger.own.tally = tree.carry_sums(ledger.pass.number, Sums { tally, ..Sums::default() }).tally;
        }
        if ledger.pass.is_last() {
            self.attempt(Buckets::send_sums);
        }
    }

    fn put(&mut self, index: usize, write: &mut dyn FnMut(&mut [f32], Fill)) {
        if self.failure.is_some() {
            return;
        }
        let Buckets { ledger, buckets, tree, .. } = &mut *self.buckets;
        let Place { bucket, range } = ledger.put(index);
        let pass @ Pass { number, .. } = ledger.pass;
        let gradients = &mut buckets[bucket].gradients;
        match tree {
            None => write(&mut gradients.values_mut()[range], pass.fill()),
            Some(tree) if ledger.pass.is_last() => {
                let gradient = &mut gradients.values_mut()[range];
                write(gradient, Fill::Set);
                tree.carry(number, index, gradient);
            }
            Some(tree) => {
                let mut gradient = std::mem::take(tree.waiting(number, index, range.len()));
                write(&mut gradient, Fill::Set);
                tree.carry(number, index, &mut gradient);
                *tree.waiting(number, index, range.len()) = gradient;
            }
        }
        self.attempt(Buckets::launch);
    }
}
