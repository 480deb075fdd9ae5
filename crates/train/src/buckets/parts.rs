//! Parts of buckets, where the optimizer is sharded: each rank gets the sum of its own part, updates the parameters of that part,
//! and holds their optimizer state alone. Then all ranks get the updated parameters of all.
//!
//! **Source**: Rajbhandari, Rasley, Ruwase and He, "ZeRO: memory optimizations toward training trillion parameter models", SC 2020,
//! section 5.1 (stage 1).
//!
//! A reduce-scatter must add in the order in which the all-reduce would: otherwise the bits would depend on how the
//! optimizer is held. So a bucket is reduce-scattered if the algorithm of its all-reduce begins with its reduce-scatter, and
//! all-reduced if not.

use std::ops::Range;
use std::time::Duration;

use super::{BucketSettings, Buckets, CollectiveSpec, Flight, Overlap};
use crate::gradients::Parameter;
use unisono::{Algorithm, Call, Communicator, Error, Method, Operation, Rank, ReduceOp, copy};

/// An optimizer's state for a parameter: its name, the index of the parameter, and a number for each element.
pub(crate) type Moment = (String, usize, Vec<f32>);

/// This rank's own parts of all buckets, in the elements of each.
pub(super) type Parts = Vec<Range<usize>>;

/// Returns this rank's own parts of buckets with this many elements.
fn parts(comm: &Communicator, counts: impl Iterator<Item = usize>) -> Parts {
    counts.map(|count| comm.own_part(count)).collect()
}

impl Buckets {
    /// Buckets whose gradients lie elsewhere, and are divided among the ranks: they only say which gradient lies where.
    ///
    /// # Errors
    /// If there is no memory for them.
    #[doc(hidden)]
    pub fn elsewhere(
        comm: &mut Communicator,
        parameters: &[Parameter],
        settings: &BucketSettings,
    ) -> Result<Self, Error> {
        let BucketSettings { first_bucket_bytes, bucket_bytes, .. } = *settings;
        let overlap = Overlap::InTurn;
        let plain = BucketSettings { first_bucket_bytes, bucket_bytes, overlap, ..BucketSettings::default() };
        let mut buckets = Self::with_memory(comm, parameters, &plain, false)?;
        buckets.parts = Some(parts(comm, buckets.ledger.plan.counts.iter().copied()));
        Ok(buckets)
    }

    /// Divides the buckets among the ranks. The first one is all-reduced if it carries sums, which all ranks need.
    pub(super) fn divide(&mut self, comm: &mut Communicator) {
        self.parts = Some(parts(comm, self.buckets.iter().map(|bucket| bucket.gradients.count())));
        let carries_sums = self.aside.is_none();
        for bucket in self.buckets.iter_mut().skip(usize::from(carries_sums)) {
            if bucket.compressor.is_some() || self.way.algorithm.is_some() || !self.has_others {
                continue;
            }
            let all_reduce = Call::all_reduce(self.dtype, ReduceOp::Sum, bucket.gradients.count());
            if let Some(algorithm) = begins_with_reduce_scatter(comm, &all_reduce) {
                let operation = Operation::ReduceScatter;
                bucket.way = CollectiveSpec { operation, algorithm: Some(algorithm), ..bucket.way };
            }
        }
    }

    /// All-reduces all buckets from now on: every rank then has the whole sums, for a norm whose bits do not depend on
    /// the parts.
    pub(crate) fn sum_whole(&mut self) {
        for bucket in &mut self.buckets {
            bucket.way = self.way;
        }
    }

    /// Returns the elements of a parameter that this rank updates if the optimizer is sharded, perhaps none; `None` if every rank
    /// updates all.
    pub fn own(&self, index: usize) -> Option<Range<usize>> {
        let parts = self.parts.as_ref()?;
        let Some(place) = self.ledger.plan.place(index) else { return Some(0..0) };
        let part = &parts[place.bucket];
        let within = |element: usize| element.clamp(place.range.start, place.range.end) - place.range.start;
        Some(within(part.start)..within(part.end))
    }

    /// Returns whether the optimizer is sharded.
    pub(crate) fn is_divided(&self) -> bool {
        self.parts.is_some()
    }

    /// Returns the number of buckets that are reduce-scattered.
    pub fn scattered(&self) -> usize {
        self.buckets.iter().filter(|bucket| bucket.way.is_of_parts()).count()
    }

    /// Returns the place where this rank leaves its own elements of an updated parameter for
    /// [`Buckets::give`].
    pub(crate) fn updated(&mut self, index: usize) -> &mut [f32] {
        let place = self.ledger.place(index).clone();
        &mut self.buckets[place.bucket].gradients.values_mut()[place.range]
    }

    /// Sends the parameters that this rank has updated, once all of this bucket are [in place](Buckets::updated). Called by all
    /// ranks.
    pub(crate) fn give(&mut self, comm: &mut Communicator, bucket: usize) -> Result<(), Error> {
        if self.parts.is_none() || !self.has_others {
            return Ok(());
        }
        let way = CollectiveSpec {
            operation: Operation::AllGather,
            ..CollectiveSpec::all_reduce(self.way.is_beside)
        };
        let bucket = &mut self.buckets[bucket];
        bucket.is_back = false;
        bucket.gradients.launch(comm, way)
    }

    /// Waits for the parameters of a bucket from all ranks; `false` if every rank has them anyway.
    pub(crate) fn take(&mut self, bucket: usize) -> Result<bool, Error> {
        if self.parts.is_none() || !self.has_others {
            return Ok(false);
        }
        self.land_sent(bucket)?;
        Ok(true)
    }

    /// Adds up the parameters of all ranks that are [in place](Buckets::updated), and waits for them. Called by all ranks.
    pub(crate) fn sum_parameters(&mut self, comm: &mut Communicator, bucket: usize) -> Result<(), Error> {
        if !self.has_others {
            return Ok(());
        }
        self.buckets[bucket].gradients.launch(comm, CollectiveSpec::all_reduce(false))?;
        self.land_sent(bucket)
    }

    /// Copies what other ranks have updated of a parameter, which has [come](Buckets::take), to its values.
    pub(crate) fn copy_others(&mut self, index: usize, values: &mut [f32]) {
        let own = self.own(index).expect("what is given has parts");
        let updated = self.updated(index);
        for others in [0..own.start, own.end..values.len()] {
            copy(&mut values[others.clone()], &updated[others]);
        }
    }

    /// Waits for the parameters of a bucket that were sent.
    pub(crate) fn land_sent(&mut self, bucket: usize) -> Result<(), Error> {
        let bucket = &mut self.buckets[bucket];
        let flight = bucket.gradients.complete()?;
        bucket.is_back = true;
        self.waited += flight.map_or(Duration::ZERO, |flight: Flight| flight.exposed);
        self.flights.extend(flight);
        Ok(())
    }

    /// Returns the bits of this rank's own elements of a trained parameter, among zeros, if the optimizer is sharded. The sum over all
    /// ranks is the whole; a sum of floating-point numbers would lose the sign of a zero.
    pub(crate) fn bits(&self, index: usize, own: &[f32]) -> Option<Vec<u32>> {
        let range = self.own(index).filter(|_| self.ledger.plan.place(index).is_some())?;
        let mut bits = vec![0; self.ledger.parameters[index].count()];
        copy(&mut bits[range], bytemuck::cast_slice(own));
        Some(bits)
    }

    /// Gathers the optimizer's state on rank 0 from what each rank remembers of its own elements; nothing on the others. Called
    /// by all ranks.
    pub(crate) fn gathered(&self, comm: &mut Communicator, own: Vec<Moment>) -> Result<Vec<Moment>, Error> {
        let mut gathered = Vec::new();
        for (name, index, mut values) in own {
            if let Some(mut bits) = self.bits(index, &values) {
                comm.reduce(&mut bits, ReduceOp::Sum, 0)?;
                values = bytemuck::cast_vec(bits);
            }
            let remembers_own = self.is_local && !values.is_empty();
            if comm.rank() == 0 {
                for rank in 1..if remembers_own { comm.ranks() } else { 1 } {
                    let mut theirs = vec![0.0; values.len()];
                    comm.receive(&mut theirs, rank)?;
                    gathered.push((of_rank(&name, rank), index, theirs));
                }
                gathered.push((name, index, values));
            } else if remembers_own {
                comm.send(&values, 0)?;
            }
        }
        Ok(gathered)
    }
}

/// Returns the name of what the optimizer of a rank remembers, if each remembers something else.
pub(crate) fn of_rank(name: &str, rank: Rank) -> String {
    if rank == 0 { name.to_owned() } else { format!("{name} of rank {rank}") }
}

/// Returns the algorithm of this all-reduce, if it first makes the steps of its reduce-scatter: each rank's part then has the
/// same bits after either.
fn begins_with_reduce_scatter(comm: &mut Communicator, all_reduce: &Call) -> Option<Algorithm> {
    let Method::Algorithm(algorithm) = comm.selection(all_reduce).method else { return None };
    // Where the parts of the two are the same, all ranks see the same.
    let schedule = |operation| Some(algorithm.plan(operation, comm.topology(), 0)?.flattened());
    let (whole, part) = (schedule(Operation::AllReduce)?, schedule(Operation::ReduceScatter)?);
    let is_first = whole.chunk_count() == part.chunk_count() && whole.steps().starts_with(part.steps());
    is_first.then_some(algorithm)
}

#[cfg(test)]
mod tests {
    use unisono::DType;

    use super::*;

    #[test]
    fn algorithms_that_begin_with_their_reduce_scatter_are_told_from_others() {
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
}
