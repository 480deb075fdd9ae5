//! Gradients in buckets. A backward pass fills the buckets from the end of the model to its beginning. Each bucket is all-reduced as soon as it is
//! full, during the pass.
//!
//! A custom training loop can use buckets without the trainer: see [`Buckets`].
//!
//! **Source**: Li et al., "PyTorch distributed: experiences on accelerating data parallel training", VLDB 2020,
//! section 3.2.3; also for the small first bucket, which gives the network work early.

use std::time::Duration;

use crate::Parameter;
use unisono::{Algorithm, Call, Communicator, Error, Method, Operation, Ran, Rank, ReduceOp, Why};
use unisono_compress::Compressor;

mod compressed;
mod filling;
mod ledger;
mod parcel;
mod parts;
mod priority;
mod settings;
mod size;
mod sums;
mod wire;
mod wires;

pub use filling::Filling;
pub use settings::{BucketBytes, BucketSettings, Order};
pub use size::BucketSize;
pub use sums::Sums;
pub use unisono_compress::{UnknownWire, Wire};
pub use unisono_steps::{Overlap, Place, Plan};
pub use wires::Wires;

use compressed::compressors;
pub use ledger::{Ledger, Pass, WithoutGradient, end_pass};
pub use parcel::CommBuffer;
use parcel::Flight;
use sums::Tree;
pub use wire::HalfBytes;
use wire::{Narrow, dtype, narrow};

/// The all-reduce across ranks for a tree of additions. It adds at distances 1, 2, 4, ….
pub const IN_TREE: Algorithm = Algorithm::RecursiveDoubling;

/// The buckets of one rank.
///
/// ```
/// use unisono_train::{Buckets, BucketSettings, Fill, Gradients, Parameter, Pass, LossSums};
///
/// let ended = unisono::threads(2, |mut comm| -> unisono::Result<()> {
///     let parameters = [Parameter::new("weight", [2, 3]), Parameter::new("bias", [3])];
///     let mut buckets = Buckets::new(&mut comm, &parameters, &BucketSettings::default())?;
///     // The backward pass of your framework; here one pass per step, the first and the last.
///     let mut filling = buckets.fill(&mut comm, Pass::ONLY);
///     filling.record_loss(LossSums { targets: 4.0, loss: 2.0, correct: 0.0 });
///     filling.put(1, &mut |gradient, fill| fill.write(gradient, &[1.0; 3]));
///     filling.put(0, &mut |gradient, fill| fill.write(gradient, &[0.5; 6]));
///     filling.end()?;
///     let sums = buckets.sums()?;
///     assert_eq!(sums.tally.targets, 8.0);
///     assert_eq!(buckets.gradient(1)?, [2.0; 3]);
///     Ok(())
/// });
/// assert!(ended.iter().all(Result::is_ok), "{ended:?}");
/// ```
#[derive(Debug)]
pub struct Buckets {
    ledger: Ledger,
    buckets: Vec<Bucket>,
    /// The sums other than gradients, if they need a separate message: gradients are rounded or stay on their rank, or there are none.
    aside: Option<CommBuffer<f32>>,
    tree: Option<Tree>,
    settings: BucketSettings,
    /// The all-reduce of a bucket that is not divided.
    way: Way,
    is_beside: bool,
    flights: Vec<Flight>,
    /// The time that this thread waited for parameters in this step.
    pub(crate) waited: Duration,
    /// The first parameter of this step whose gradient a compressor has found not to be finite, and the largest magnitude in that gradient.
    not_finite: Option<(usize, f32)>,
    /// The error of a collective, after which a bucket is lost.
    lost: Option<String>,
    rank: Rank,
}

#[derive(Debug)]
struct Bucket {
    gradients: CommBuffer<f32>,
    narrow: Option<Box<dyn Narrow>>,
    compressor: Option<Compressor>,
    way: Way,
    is_back: bool,
}

/// The collective of a bucket, and its algorithm if the communicator does not choose.
type Way = (Operation, Option<Algorithm>);

impl Bucket {
    /// Returns whether each rank receives only its own part of the sums.
    fn is_scattered(&self) -> bool {
        self.way.0 == Operation::ReduceScatter
    }
}

impl Buckets {
    /// Creates buckets for the gradients of these parameters, which must be the same on all ranks. Called by all ranks.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is not enough memory. [`Error::Unsupported`] if gradients are to be added in a tree and the number of ranks is not
    /// a power of two, or if settings contradict [local steps](BucketSettings::local_steps).
    pub fn new(
        comm: &mut Communicator,
        parameters: &[Parameter],
        settings: &BucketSettings,
    ) -> Result<Self, Error> {
        if let Some(why) = settings.conflict() {
            return Err(Error::Unsupported(why));
        }
        let ledger = Ledger::new(parameters, settings, BucketSize::of(comm, settings));
        let is_local = settings.local_steps.is_some();
        let rides_along = settings.wire == Wire::F32 && !is_local && !ledger.plan.counts.is_empty();
        let elements = |bucket, count| if bucket == 0 && rides_along { count + Sums::COUNT } else { count };
        let compressors = compressors(comm, &ledger, settings)?;
        let ranks = comm.ranks();
        if settings.order == Order::Tree && !ranks.is_power_of_two() {
            return Err(Error::Unsupported(format!(
                "an order of additions that does not depend on the number of ranks needs 1, 2, 4, 8, … ranks, and there \
                 are {ranks}"
            )));
        }
        let way = (Operation::AllReduce, (settings.order == Order::Tree).then_some(IN_TREE));
        let is_beside = settings.overlap.is_beside(comm.topology().nodes());
        let buckets =
            (0..).zip(&ledger.plan.counts).zip(compressors).map(|((bucket, &count), compressor)| {
                Ok(Bucket {
                    gradients: CommBuffer::new(comm, Some(bucket), elements(bucket, count), is_beside)?,
                    narrow: narrow(comm, settings, (bucket, count), is_beside)?,
                    compressor,
                    way,
                    is_back: true,
                })
            });
        let mut buckets = Self {
            buckets: buckets.collect::<Result<_, Error>>()?,
            aside: (!rides_along).then(|| CommBuffer::new(comm, None, Sums::COUNT, is_beside)).transpose()?,
            tree: (settings.order == Order::Tree).then(Tree::default),
            settings: settings.clone(),
            waited: Duration::ZERO,
            way,
            is_beside,
            flights: Vec::new(),
            not_finite: None,
            lost: None,
            rank: comm.rank(),
            ledger,
        };
        if settings.shard_optimizer {
            buckets.divide(comm);
        }
        Ok(buckets)
    }

    /// Returns the number of buckets.
    pub fn len(&self) -> usize {
        self.buckets.len()
    }

    /// Returns whether there is no trained parameter.
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// Returns the maximum bytes of gradients in a bucket, and the reason for it.
    pub fn size(&self) -> BucketSize {
        self.ledger.size
    }

    /// Returns whether bucket all-reduces overlap the backward pass.
    pub fn is_beside(&self) -> bool {
        self.is_beside
    }

    /// Returns the method that will all-reduce the largest bucket, and the reason for it.
    pub fn ran(&self, comm: &mut Communicator) -> Ran {
        if self.settings.order == Order::Tree {
            let why = Why::Default("the order of additions does not depend on the number of ranks");
            return Ran { method: Method::Algorithm(IN_TREE), why, link: comm.transport() };
        }
        let largest = self.buckets.iter().map(|bucket| bucket.gradients.count()).max().unwrap_or(0);
        comm.selection(&Call::all_reduce(dtype(self.settings.wire), ReduceOp::Sum, largest))
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Starts a pass that fills the buckets. Earlier passes of a step accumulate locally. The last one all-reduces the buckets, so every rank needs
    /// one, even if it is empty.
    ///
    /// # Panics
    /// If buckets of the previous step are still in flight.
    pub fn fill<'a>(&'a mut self, comm: &'a mut Communicator, pass: Pass) -> Filling<'a> {
        assert!(
            self.lost.is_some() || self.buckets.iter().all(|bucket| bucket.is_back),
            "a bucket of the step before is on its way"
        );
        Filling::new(self, comm, pass)
    }

    /// Waits for the first bucket, and returns the sums over all ranks other than gradients.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn sums(&mut self) -> Result<Sums, Error> {
        self.complete_aside()?;
        if let Some(aside) = &self.aside {
            return Ok(Sums::read(aside.values()));
        }
        self.assert_launched(0);
        self.complete(0)?;
        Ok(Sums::read(&self.buckets[0].gradients.values()[self.ledger.plan.counts[0]..]))
    }

    /// Waits for the bucket of a parameter, and returns its gradient, summed over all ranks. If the optimizer is sharded, only [this rank's own
    /// elements](crate::Mirror::own) are sums.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    ///
    /// # Panics
    /// If the parameter is not trained.
    pub fn gradient(&mut self, index: usize) -> Result<&[f32], Error> {
        let bucket = self.ledger.place(index).bucket;
        self.check()?;
        self.assert_launched(bucket);
        self.late_gradient(index)
    }

    /// Returns the time that the buckets of the last step were in flight while this thread computed, and the time that it waited for them.
    pub fn hidden_and_exposed(&self) -> (Duration, Duration) {
        let exposed = self.flights.iter().map(|flight| flight.exposed).sum();
        let travelled: Duration = self.flights.iter().map(|flight| flight.ended - flight.began).sum();
        (travelled.saturating_sub(exposed), exposed)
    }

    /// Waits for all buckets, and for the sums other than gradients.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn land_all(&mut self) -> Result<(), Error> {
        self.complete_aside()?;
        for bucket in self.ledger.order.clone() {
            self.assert_launched(bucket);
            self.complete(bucket)?;
        }
        Ok(())
    }

    fn assert_launched(&self, bucket: usize) {
        let launched = &self.ledger.order[..self.ledger.launched];
        assert!(launched.contains(&bucket), "bucket {bucket} is not on its way: the last pass has not ended");
    }

    /// Returns the error of an earlier collective, if one has failed.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Some(cause) = &self.lost else { return Ok(()) };
        Err(Error::Aborted { rank: self.rank, by: self.rank, cause: cause.clone() })
    }

    /// Records an error of a collective, after which a bucket is lost.
    fn recorded<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        result.inspect_err(|error| self.lost = Some(error.to_string()))
    }

    fn complete_aside(&mut self) -> Result<(), Error> {
        self.check()?;
        if let Some(aside) = &mut self.aside {
            let flight = aside.complete();
            let flight = self.recorded(flight)?;
            self.flights.extend(flight);
        }
        Ok(())
    }

    /// Waits for a launched bucket of the last step.
    fn complete(&mut self, number: usize) -> Result<(), Error> {
        self.check()?;
        let bucket = &mut self.buckets[number];
        if bucket.is_back {
            return Ok(());
        }
        let parts = self.ledger.parts.as_ref().filter(|_| bucket.is_scattered());
        let own = parts.map(|parts| parts[number].clone());
        let flight = match &mut bucket.narrow {
            None => bucket.gradients.complete(),
            Some(narrow) => narrow.complete(bucket.gradients.values_mut(), own),
        };
        let flight = self.recorded(flight)?;
        self.flights.extend(flight);
        let bucket = &mut self.buckets[number];
        bucket.is_back = true;
        if bucket.compressor.as_ref().is_some_and(|compressor| !compressor.was_finite()) {
            self.find_not_finite(number);
        }
        Ok(())
    }

    /// Sends the sums other than gradients, or puts them into the first bucket.
    fn send_sums(&mut self, comm: &mut Communicator) -> Result<(), Error> {
        let Ledger { plan, own, .. } = &self.ledger;
        let Some(aside) = &mut self.aside else {
            own.write(&mut self.buckets[0].gradients.values_mut()[plan.counts[0]..]);
            return Ok(());
        };
        own.write(aside.values_mut());
        if comm.ranks() > 1 { aside.launch(comm, self.way) } else { Ok(()) }
    }

    /// Launches, in order, all buckets that are full and not yet launched.
    fn launch(&mut self, comm: &mut Communicator) -> Result<(), Error> {
        let compresses = self.ledger.pass.updates >= self.settings.uncompressed_steps;
        while let Some(full) = self.ledger.full() {
            let bucket = &mut self.buckets[full];
            let compressor = bucket.compressor.as_ref().filter(|_| compresses);
            // A compressor adds restored residuals, also if there is no other rank.
            if (comm.ranks() > 1 || compressor.is_some()) && self.settings.local_steps.is_none() {
                match (&mut bucket.narrow, compressor) {
                    (None, None) => bucket.gradients.launch(comm, bucket.way)?,
                    (None, Some(compressor)) => bucket.gradients.launch_compressed(comm, compressor)?,
                    (Some(narrow), _) => narrow.launch(comm, bucket.way, bucket.gradients.values())?,
                }
                bucket.is_back = false;
            }
            self.ledger.launched += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gradients as _, LossSums};

    #[test]
    fn buckets_after_a_failed_collective_return_errors() {
        for overlap in [Overlap::Beside, Overlap::InTurn] {
            unisono::threads(2, |mut comm| {
                let settings = BucketSettings { overlap, ..BucketSettings::default() };
                let parameters = [Parameter::new("weight", [2])];
                let mut buckets = Buckets::new(&mut comm, &parameters, &settings).unwrap();
                if comm.rank() == 1 {
                    return comm.fail("the program has changed its mind");
                }
                for _ in 0..2 {
                    let mut filling = buckets.fill(&mut comm, Pass::ONLY);
                    filling.record_loss(LossSums::default());
                    filling.put(0, &mut |gradient, fill| fill.write(gradient, &[1.0; 2]));
                    // A call on this thread has failed already, and a background call may still be in flight.
                    let ended = filling.end().map(drop);
                    let errors =
                        [buckets.sums().map(drop), buckets.gradient(0).map(drop), buckets.land_all()];
                    let errors = errors.map(|ended| ended.unwrap_err().to_string());
                    assert!(
                        errors.iter().all(|why| why.contains("changed its mind")),
                        "{ended:?} {errors:?}"
                    );
                }
            });
        }
    }
}
