//! Parts of buckets for a sharded optimizer. Each rank receives the sum of its own part, updates the parameters of that part, and holds only their
//! optimizer state. Then all ranks receive all updated parameters.
//!
//! **Source**: Rajbhandari, Rasley, Ruwase and He, "ZeRO: memory optimizations toward training trillion parameter models", SC 2020,
//! section 5.1 (stage 1).
//!
//! A reduce-scatter must add in the same order as the all-reduce. Otherwise the bits would depend on whether the optimizer is sharded. A bucket is
//! therefore reduce-scattered only if the algorithm of its all-reduce begins with its reduce-scatter. Other buckets are all-reduced.

use std::time::Duration;

use super::{Buckets, dtype};
use unisono::{Algorithm, Call, Communicator, Error, Method, Operation, ReduceOp, copy};

impl Buckets {
    /// Divides the buckets among the ranks. The first one is all-reduced if it carries sums, which all ranks need.
    pub(super) fn divide(&mut self, comm: &mut Communicator) {
        self.ledger.divide(comm, self.buckets.iter().map(|bucket| bucket.gradients.count()));
        let carries_sums = self.aside.is_none();
        for bucket in self.buckets.iter_mut().skip(usize::from(carries_sums)) {
            if bucket.compressor.is_some() || self.tree.is_some() || comm.ranks() == 1 {
                continue;
            }
            let all_reduce =
                Call::all_reduce(dtype(self.settings.wire), ReduceOp::Sum, bucket.gradients.count());
            if let Some(algorithm) = begins_with_reduce_scatter(comm, &all_reduce) {
                bucket.way = (Operation::ReduceScatter, Some(algorithm));
            }
        }
    }

    /// All-reduces all buckets from now on. Every rank then has the whole sums, so the bits of a norm do not depend on the parts.
    pub(crate) fn sum_whole(&mut self) {
        for bucket in &mut self.buckets {
            bucket.way = self.way;
        }
    }

    /// Returns the number of buckets that are reduce-scattered.
    pub fn scattered(&self) -> usize {
        self.buckets.iter().filter(|bucket| bucket.is_scattered()).count()
    }

    /// Returns the elements at the place of a parameter: its gradient or, after the update, the values that [`Buckets::give`] sends.
    pub(crate) fn elements(&mut self, index: usize) -> &mut [f32] {
        let place = self.ledger.place(index).clone();
        &mut self.buckets[place.bucket].gradients.values_mut()[place.range]
    }

    /// Sends the parameters that this rank has updated. They must be [in place](Buckets::elements) for the whole bucket. Called by all ranks.
    pub(crate) fn give(&mut self, comm: &mut Communicator, bucket: usize) -> Result<(), Error> {
        self.launch_parameters(comm, bucket, Operation::AllGather)
    }

    /// Sums the parameters that are [in place](Buckets::elements) over all ranks, and waits for the result. Called by all ranks.
    pub(crate) fn sum_parameters(&mut self, comm: &mut Communicator, bucket: usize) -> Result<(), Error> {
        self.launch_parameters(comm, bucket, Operation::AllReduce)?;
        self.land_sent(bucket)
    }

    /// Starts a collective on the parameters of a bucket, if there are other ranks.
    fn launch_parameters(
        &mut self,
        comm: &mut Communicator,
        bucket: usize,
        operation: Operation,
    ) -> Result<(), Error> {
        self.check()?;
        if comm.ranks() == 1 {
            return Ok(());
        }
        let bucket = &mut self.buckets[bucket];
        bucket.is_back = false;
        let launched = bucket.gradients.launch(comm, (operation, None));
        self.recorded(launched)
    }

    /// Copies the elements of a parameter that other ranks have updated to its values. They must have [arrived](Buckets::land_sent).
    pub(crate) fn copy_others(&mut self, index: usize, values: &mut [f32]) {
        let own = self.ledger.own(index);
        let updated = self.elements(index);
        for others in [0..own.start, own.end..values.len()] {
            copy(&mut values[others.clone()], &updated[others]);
        }
    }

    /// Waits for the sent parameters of a bucket, if there are other ranks.
    pub(crate) fn land_sent(&mut self, bucket: usize) -> Result<(), Error> {
        self.check()?;
        let flight = self.buckets[bucket].gradients.complete();
        let flight = self.recorded(flight)?;
        self.buckets[bucket].is_back = true;
        self.waited += flight.map_or(Duration::ZERO, |flight| flight.exposed);
        self.flights.extend(flight);
        Ok(())
    }
}

/// Returns the algorithm of this all-reduce, if it begins with the steps of its reduce-scatter. Each rank's part then has the same bits after either
/// collective.
fn begins_with_reduce_scatter(comm: &mut Communicator, all_reduce: &Call) -> Option<Algorithm> {
    let Method::Algorithm(algorithm) = comm.selection(all_reduce).method else { return None };
    // Every rank compares the schedules of rank 0, so all ranks reach the same result.
    let schedule = |operation| Some(algorithm.plan(operation, comm.topology(), 0)?.flattened());
    let (whole, part) = (schedule(Operation::AllReduce)?, schedule(Operation::ReduceScatter)?);
    let is_first = whole.chunk_count() == part.chunk_count() && whole.steps().starts_with(part.steps());
    is_first.then_some(algorithm)
}

#[cfg(test)]
mod tests {
    use unisono::DType;

    use super::*;
    use crate::{BucketSettings, Gradients as _, LocalSteps, LossSums, Outer, Overlap, Parameter, Pass};

    #[test]
    fn only_algorithms_that_begin_with_their_reduce_scatter_are_accepted() {
        for ranks in [2, 3, 4, 6] {
            let found = unisono::threads(ranks, |mut comm| {
                Algorithm::ALL.map(|algorithm| {
                    comm.set_choice(algorithm).unwrap();
                    let call = Call::all_reduce(DType::F32, ReduceOp::Sum, 1 << 20);
                    begins_with_reduce_scatter(&mut comm, &call).is_some()
                })
            });
            let halves = |algorithm| match algorithm {
                Algorithm::Ring | Algorithm::RoundRobin => true,
                Algorithm::Butterfly => ranks.is_power_of_two(),
                _ => false,
            };
            assert!(
                found.iter().all(|found| *found == Algorithm::ALL.map(halves)),
                "{ranks} ranks: {found:?}"
            );
        }
    }

    #[test]
    fn buckets_after_a_failed_exchange_of_parameters_return_errors() {
        let local = LocalSteps { steps: 2, outer: Outer::Average };
        for overlap in [Overlap::Beside, Overlap::InTurn] {
            for local_steps in [None, Some(local)] {
                unisono::threads(2, |mut comm| {
                    let shard_optimizer = local_steps.is_none();
                    let settings =
                        BucketSettings { overlap, shard_optimizer, local_steps, ..BucketSettings::default() };
                    let parameters = [Parameter::new("weight", [2])];
                    let mut buckets = Buckets::new(&mut comm, &parameters, &settings).unwrap();
                    if comm.rank() == 1 {
                        return comm.fail("the program has changed its mind");
                    }
                    let exchanged = if shard_optimizer {
                        buckets.give(&mut comm, 0).and_then(|()| buckets.land_sent(0))
                    } else {
                        buckets.sum_parameters(&mut comm, 0)
                    };
                    let mut filling = buckets.fill(&mut comm, Pass::ONLY);
                    filling.record_loss(LossSums::default());
                    filling.put(0, &mut |gradient, fill| fill.write(gradient, &[1.0; 2]));
                    for ended in [exchanged, filling.end().map(drop), buckets.land_sent(0)] {
                        let why = ended.unwrap_err().to_string();
                        assert!(why.contains("changed its mind"), "{why}");
                    }
                });
            }
        }
    }
}
