//! Central storage: parameters, gradients and optimizer state once on a node. Each rank updates its part of the parameters, where all
//! compute from them.

use std::time::{Duration, Instant};

use unisono::{Communicator, Error, Rank, ReduceOp};
use unisono_train::internals::{
    Backend, Ledger, Run, State, Update, Values, end_pass, keeps_average, needs_whole, optimizer_of,
};
use unisono_train::optimizer::{Exploded, Optimizer, OptimizerSettings, square_sum};
use unisono_train::{
    BucketSettings, BucketSize, Fill, Gradients, LossSums, Parameter, Pass, Sums, Times, TrainError,
};

#[allow(unsafe_code, reason = "ranks add gradients where all see them")]
mod gradients;

use gradients::CentralGradients;

/// Central storage for a replica with these parameters, whose trained values lie in memory that all ranks share
/// ([`Replica::shares_values`]): the replica returns it from [`Replica::device`]. Called by all ranks.
///
/// # Errors
/// [`TrainError::Setting`], on all ranks, if the optimizer needs whole parameters or a replica of its own on each rank; errors of the
/// collectives.
///
/// [`Replica::shares_values`]: unisono_train::Replica::shares_values
/// [`Replica::device`]: unisono_train::Replica::device
pub fn central_storage(
    comm: &mut Communicator,
    parameters: &[Parameter],
    optimizer: &OptimizerSettings,
    buckets: &BucketSettings,
) -> Result<Box<dyn Backend>, TrainError> {
    let central = "central storage";
    let refused = needs_whole(optimizer, central).or_else(|| keeps_average(optimizer, central));
    refused.map_or(Ok(()), |why| Err(TrainError::Setting(why)))?;
    let mut ledger = Ledger::new(parameters, buckets, BucketSize::usual_of(buckets));
    ledger.divide(comm, ledger.plan.counts.clone());
    Ok(Box::new(Central {
        gradients: CentralGradients::new(comm, &ledger.plan.counts, parameters.len())?,
        optimizer: optimizer_of(optimizer.clone(), &ledger)?,
        ledger,
        rank: comm.rank(),
        sums: Sums::default(),
        waited: Default::default(),
    }))
}

#[derive(Debug)]
struct Central {
    /// The places of gradients, and the owners of their updates.
    ledger: Ledger,
    rank: Rank,
    gradients: CentralGradients,
    optimizer: Optimizer,
    sums: Sums,
    /// The time that this rank waited for others in this step: in its passes, and after them.
    waited: [Duration; 2],
}

/// Adds the gradients of a pass.
struct Turns<'a> {
    central: &'a mut Central,
    comm: &'a mut Communicator,
    failure: Option<Error>,
}

impl Gradients for Turns<'_> {
    fn record_loss(&mut self, tally: LossSums) {
        self.central.ledger.record_loss(tally);
    }

    fn put(&mut self, index: usize, write: &mut dyn FnMut(&mut [f32], Fill)) {
        let Central { ledger, gradients, waited, .. } = &mut *self.central;
        let place = ledger.put(index);
        let pass = ledger.pass.number;
        if self.failure.is_none() {
            match gradients.put(self.comm, (index, &place, pass), write) {
                Ok(took) => waited[0] += took,
                Err(error) => self.failure = Some(error),
            }
        }
    }
}

impl Central {
    /// Adds up what is no gradient. All gradients are in place when it ends.
    fn add_up(&mut self, comm: &mut Communicator) -> Result<(), Error> {
        let began = Instant::now();
        let mut sums = [0.0; Sums::COUNT];
        self.ledger.own.write(&mut sums);
        comm.all_reduce(&mut sums, ReduceOp::Sum)?;
        self.sums = Sums::read(&sums);
        self.gradients.end(comm.ranks(), self.ledger.pass.of);
        self.waited[0] += began.elapsed();
        Ok(())
    }
}

impl Backend for Central {
    fn passes(&mut self, comm: &mut Communicator, passes: usize) -> Result<usize, TrainError> {
        let mut most = [passes as u64];
        comm.all_reduce(&mut most, ReduceOp::Max)?;
        Ok(most[0] as usize)
    }

    fn pass(&mut self, comm: &mut Communicator, pass: Pass, run: Run<'_>) -> Result<Vec<usize>, TrainError> {
        if pass.number == 0 {
            self.waited = [Duration::ZERO; 2];
        }
        self.ledger.begin(pass);
        let mut turns = Turns { central: self, comm, failure: None };
        let ran = run(&mut turns).map(|()| end_pass(&mut turns, |turns| &turns.central.ledger));
        // The cause that kept a gradient from being put is more precise than the end of the pass.
        turns.failure.map_or(Ok(()), Err)?;
        let without = ran?;
        if pass.is_last() {
            self.add_up(comm)?;
        }
        Ok(without)
    }

    fn sums(&mut self) -> Result<Sums, TrainError> {
        Ok(self.sums)
    }

    fn complete(&mut self, _: &mut Communicator, _: usize) -> Result<(), TrainError> {
        Ok(())
    }

    fn square_sum(&mut self, index: usize) -> Result<f64, TrainError> {
        Ok(square_sum(self.gradients.sum(self.ledger.place(index))))
    }

    fn begin_update(&mut self) {
        self.optimizer.begin_step();
    }

    fn update_parameter(&mut self, values: Values<'_>, index: usize, by: Update) -> Result<(), TrainError> {
        let Self { ledger, gradients, optimizer, rank, .. } = self;
        let own = ledger.own(index);
        let gradient = &gradients.sum(ledger.place(index))[own.clone()];
        let mut made = Ok(());
        values(index, &mut |values| {
            made = optimizer.update(index, &mut values[own.clone()], gradient, by.scale, by.rate);
        })?;
        made.map_err(|Exploded { largest }| {
            ledger.not_finite("largest value", index, largest, (*rank, optimizer.steps()))
        })
    }

    fn finish(&mut self, comm: &mut Communicator, _: Values<'_>) -> Result<(), TrainError> {
        let began = Instant::now();
        // All have updated their parts, and read the sums.
        comm.barrier()?;
        self.waited[1] += began.elapsed();
        Ok(())
    }

    fn times(&self, passes: Duration, rest: Duration) -> Times {
        let [in_passes, in_rest] = self.waited;
        Times {
            compute: passes.saturating_sub(in_passes),
            exposed: in_passes + in_rest,
            update: rest.saturating_sub(in_rest),
            ..Times::default()
        }
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn optimizer(&mut self) -> Result<&Optimizer, TrainError> {
        Ok(&self.optimizer)
    }

    fn restore_optimizer(&mut self, steps: u64, state: State<'_, '_>) -> Result<(), TrainError> {
        Ok(self.optimizer.restore(steps, state)?)
    }
}
