//! The data-parallel step: [`Mirror::step`] reads in the order in which things happen.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::buckets::{BucketSettings, Buckets, Pass, Sums};
use super::optimizer::{Optimizer, OptimizerSettings, clip_factor, square_sum};
use super::replica::{Fill, Gradients, Replica, Tally};
use super::share::{Share, StepReport, Times, in_every_pass};
use super::trace::{Lane, Recorder};
use crate::compare;
use crate::compare::agree;
use crate::device::OnDevice;
use crate::error::TrainError;
use unisono::Communicator;

/// One rank's replica, kept identical to those of the other ranks by steps that all ranks make together.
///
/// It is the trainer without its loop, for your own loop.
#[derive(Debug)]
pub struct Mirror<R> {
    replica: R,
    buckets: Buckets,
    optimizer: Optimizer,
    /// The buckets and optimizer of a replica on a GPU.
    device: Option<OnDevice>,
    clip_norm: Option<f64>,
    never_put: BTreeSet<usize>,
    recorder: Option<Recorder>,
}

impl<R: Replica> Mirror<R> {
    /// Makes this replica the same as rank 0's. Called by all ranks.
    ///
    /// # Errors
    /// [`TrainError::ModelsDiffer`] if the parameters of a rank have other names or shapes than rank 0's; errors of the
    /// collectives; [`TrainError::Replica`].
    pub fn new(
        comm: &mut Communicator,
        mut replica: R,
        optimizer: OptimizerSettings,
        buckets: &BucketSettings,
        clip_norm: Option<f64>,
    ) -> Result<Self, TrainError> {
        compare::parameters(comm, replica.parameters())?;
        for index in 0..replica.parameters().len() {
            let mut sent = Ok(());
            replica.with_values(index, &mut |values| sent = comm.broadcast(values, 0).map(drop))?;
            sent?;
        }
        let device = OnDevice::of(comm, &replica, optimizer, buckets);
        let device = if cfg!(feature = "cuda") { agree(comm, device)? } else { device? };
        let trained = replica.parameters().iter();
        let parameters =
            trained.map(|found| (if found.is_trained { found.count() } else { 0 }, found.shape.len() < 2));
        Ok(Self {
            optimizer: Optimizer::new(optimizer, parameters)?,
            buckets: match device {
                None => Buckets::new(comm, replica.parameters(), buckets)?,
                Some(_) => Buckets::new(comm, &[], buckets)?,
            },
            replica,
            device,
            clip_norm,
            never_put: BTreeSet::new(),
            recorder: None,
        })
    }

    /// Makes a data-parallel step. Every rank accumulates the gradients of its micro-batches; during the last one, buckets are
    /// all-reduced as they fill, together with the number of targets, so the mean is weighted whatever the shares are. Then
    /// all ranks make the same update. Called by all ranks.
    ///
    /// `goes_on` receives the sums before the update and decides whether to make it; it must return the
    /// same on all ranks.
    ///
    /// # Errors
    /// Errors of the collectives; [`TrainError::Replica`].
    pub fn step(
        &mut self,
        comm: &mut Communicator,
        share: Share<'_, R::Batch>,
        rate: f64,
        goes_on: impl FnOnce(&Sums) -> bool,
    ) -> Result<StepReport, TrainError> {
        if let Some(device) = &mut self.device {
            let (report, never_put) =
                device.step(comm, &mut self.replica, share, rate, self.clip_norm, goes_on)?;
            return Ok(StepReport { without_gradient: self.new_names(never_put), ..report });
        }
        let began = Instant::now();
        let without_gradient = self.pass(comm, share)?;
        let computed = Instant::now();
        let sums = self.buckets.sums()?;
        let mut norm = None;
        if goes_on(&sums) && sums.tally.targets > 0.0 {
            let mut scale = (1.0 / sums.tally.targets) as f32;
            if let Some(most) = self.clip_norm {
                let found = self.norm()? * f64::from(scale);
                scale *= clip_factor(found, most);
                norm = Some(found);
            }
            self.update(scale, rate as f32)?;
        }
        self.buckets.land_all()?;
        let times = self.times(began, computed);
        Ok(StepReport { sums, own: self.buckets.own_tally(), norm, times, without_gradient })
    }

    /// Runs this rank's micro-batches. Returns the parameters that have no gradient for the first time.
    fn pass(
        &mut self,
        comm: &mut Communicator,
        share: Share<'_, R::Batch>,
    ) -> Result<Vec<String>, TrainError> {
        let of = share.passes.len().max(1);
        let mut never_put = None;
        for number in 0..of {
            let Share { is_out_of_data, asks_to_stop, .. } = share;
            let pass = Pass { number, of, is_out_of_data, asks_to_stop };
            let mut filling = self.buckets.fill(comm, pass);
            let batch = share.passes.get(number).and_then(Option::as_ref);
            if let Some(batch) = batch {
                let began = Instant::now();
                let mut watched = Watched { gradients: &mut filling, weighed: None };
                self.replica.pass(batch, &mut watched)?;
                let weighed = watched.weighed.unwrap_or(began);
                if let Some(recorder) = &mut self.recorder {
                    recorder.span(Lane::Compute, "forward", began, weighed);
                    recorder.span(Lane::Compute, "backward", weighed, Instant::now());
                }
            }
            let without = filling.end()?;
            if batch.is_some() {
                never_put = in_every_pass(never_put, without);
            }
        }
        Ok(self.new_names(never_put))
    }

    /// The names of those of these parameters that always had a gradient until now.
    fn new_names(&mut self, never_put: Option<BTreeSet<usize>>) -> Vec<String> {
        let names = self.replica.parameters();
        let new: Vec<_> = never_put.unwrap_or_default().difference(&self.never_put).copied().collect();
        self.never_put.extend(&new);
        new.into_iter().map(|index| names[index].name.clone()).collect()
    }

    /// The norm of the summed gradient. Waits for all buckets.
    fn norm(&mut self) -> Result<f64, TrainError> {
        let mut squares = 0.0;
        for index in self.trained() {
            squares += square_sum(self.buckets.gradient(index)?);
        }
        Ok(squares.sqrt())
    }

    /// Updates all parameters, bucket by bucket as they arrive.
    fn update(&mut self, scale: f32, rate: f32) -> Result<(), TrainError> {
        self.optimizer.begin_step();
        for index in self.trained() {
            let gradient = self.buckets.gradient(index)?;
            let began = Instant::now();
            let optimizer = &mut self.optimizer;
            self.replica.with_values(index, &mut |values| {
                optimizer.update(index, values, gradient, scale, rate);
            })?;
            if let Some(recorder) = &mut self.recorder {
                recorder.span(
                    Lane::Update,
                    self.replica.parameters()[index].name.clone(),
                    began,
                    Instant::now(),
                );
            }
        }
        Ok(())
    }

    /// The indices of trained parameters, in the order in which buckets arrive.
    fn trained(&self) -> Vec<usize> {
        self.buckets.parameters().flatten().copied().collect()
    }

    fn times(&mut self, began: Instant, computed: Instant) -> Times {
        let (hidden, exposed) = self.buckets.hidden_and_exposed();
        if let Some(recorder) = &mut self.recorder {
            for flight in self.buckets.flights() {
                let name = flight.bucket.map_or("sums".to_owned(), |bucket| format!("bucket {bucket}"));
                recorder.span(Lane::Communication, name, flight.began, flight.ended);
            }
        }
        // In turn, buckets travel in the midst of a pass; otherwise they are waited for in the midst of the update.
        let (during_pass, during_update) =
            if self.buckets.is_beside() { (Duration::ZERO, exposed) } else { (exposed, Duration::ZERO) };
        Times {
            input: Duration::ZERO,
            compute: (computed - began).saturating_sub(during_pass),
            hidden,
            exposed,
            update: computed.elapsed().saturating_sub(during_update),
        }
    }

    /// The replica.
    pub fn replica(&mut self) -> &mut R {
        &mut self.replica
    }

    /// The optimizer and its state, which is copied to the host if it is on a GPU.
    ///
    /// # Errors
    /// [`TrainError::Replica`] if the state cannot be copied.
    pub fn optimizer(&mut self) -> Result<&Optimizer, TrainError> {
        if let Some(device) = &self.device {
            device.save(&mut self.optimizer)?;
        }
        Ok(&self.optimizer)
    }

    /// Restores the optimizer's state after so many steps: [`Optimizer::restore`].
    ///
    /// # Errors
    /// [`TrainError::OtherRun`] if the state is of another optimizer; [`TrainError::Replica`].
    pub fn restore_optimizer<'a>(
        &mut self,
        steps: u64,
        state: impl IntoIterator<Item = (&'a str, usize, &'a [f32])>,
    ) -> Result<(), TrainError> {
        self.optimizer.restore(steps, state)?;
        self.device.as_mut().map_or(Ok(()), |device| device.load(&self.optimizer))
    }

    /// Whether the replica is on a GPU, and gradients are reduced there.
    pub fn is_on_device(&self) -> bool {
        self.device.is_some()
    }

    /// The buckets; empty if gradients are reduced on a GPU.
    pub fn buckets(&self) -> &Buckets {
        &self.buckets
    }

    /// Records what happens in steps from now on; returns what was recorded so far. Work on a GPU is not recorded.
    pub fn record(&mut self, recorder: Option<Recorder>) -> Option<Recorder> {
        std::mem::replace(&mut self.recorder, recorder)
    }

    /// The recorder, if steps are recorded.
    pub fn recorder(&mut self) -> Option<&mut Recorder> {
        self.recorder.as_mut()
    }

    /// The hash of all values, the same on all ranks.
    ///
    /// # Errors
    /// [`TrainError::Replica`].
    pub fn hash(&mut self) -> Result<u64, TrainError> {
        Ok(compare::hash(&mut self.replica)?)
    }
}

/// Forwards gradients, and notes when the forward pass ended.
struct Watched<'a, G> {
    gradients: &'a mut G,
    weighed: Option<Instant>,
}

impl<G: Gradients> Gradients for Watched<'_, G> {
    fn weigh(&mut self, tally: Tally) {
        self.weighed = Some(Instant::now());
        self.gradients.weigh(tally);
    }

    fn put(&mut self, index: usize, write: &mut dyn FnMut(&mut [f32], Fill)) {
        self.gradients.put(index, write);
    }
}
