//! Central storage: one copy of parameters, gradients and optimizer state per node. All ranks compute with the same parameters, and each updates its
//! part of them in place.

use std::time::{Duration, Instant};

use unisono::{Communicator, Error, Rank, ReduceOp};
use unisono_train::internals::{
    Backend, Ledger, Run, Update, Values, end_pass, keeps_average, needs_whole, optimizer_of,
};
use unisono_train::optimizer::{Exploded, Optimizer, OptimizerSettings, Restore, square_sum};
use unisono_train::{
    BucketSettings, BucketSize, Fill, Gradients, LossSums, Order, Overlap, Parameter, Pass, Sums, Times,
    TrainError, Wire, agree,
};

#[allow(unsafe_code, reason = "ranks add gradients where all see them")]
mod gradients;

use gradients::CentralGradients;

/// Returns central storage for a replica with these parameters. The trained values must be in memory that all ranks share
/// ([`Replica::shares_values`]). The replica returns it from [`Replica::device`]. Called by all ranks.
///
/// # Errors
/// [`TrainError::Setting`] on rank 0, and [`TrainError::Elsewhere`] on the others, if the optimizer needs whole parameters or a separate replica on
/// each rank, or if a setting would have no effect. Errors of the collectives.
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
    let refused = refused.or_else(|| refusal(buckets));
    agree(comm, refused.map_or(Ok(()), |why| Err(TrainError::Setting(why))))?;
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

/// Returns the first of these settings that central storage does not support, if any.
fn refusal(buckets: &BucketSettings) -> Option<String> {
    let why = match buckets {
        BucketSettings { local_steps: Some(_), .. } => {
            "there is one copy of the parameters: remove --local-steps"
        }
        BucketSettings { order: Order::Tree, .. } => {
            "ranks add their gradients in turn: remove --order world-invariant"
        }
        BucketSettings { shard_optimizer: true, .. } => {
            "each rank updates its part of the only optimizer state anyway: remove --shard-optimizer"
        }
        // `Beside` has no effect either, but a mirror sets it for a model that normalises over the samples of all ranks.
        BucketSettings { overlap: overlap @ (Overlap::Across | Overlap::InTurn), .. } => &format!(
            "gradients are added during the backward pass, and an update ends before the next: remove --overlap {overlap}"
        ),
        BucketSettings { wire: Wire::F32, .. } => return None,
        BucketSettings { wire, .. } => &format!("no gradient travels: remove --wire {wire}"),
    };
    Some(format!("with central storage {why}"))
}

#[derive(Debug)]
struct Central {
    /// The places of gradients, and the ranks that update them.
    ledger: Ledger,
    rank: Rank,
    gradients: CentralGradients,
    optimizer: Optimizer,
    sums: Sums,
    /// The time that this rank waited for others in this step: during its passes, and after them.
    waited: [Duration; 2],
}

/// Receives the gradients of a pass and adds them to the sums.
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

impl Backend for Central {
    fn passes(
        &mut self,
        comm: &mut Communicator,
        passes: usize,
        has_samples: &dyn Fn(usize) -> bool,
    ) -> Result<usize, TrainError> {
        Ok(self.gradients.begin(comm, passes, has_samples)?)
    }

    fn pass(&mut self, comm: &mut Communicator, pass: Pass, run: Run<'_>) -> Result<Vec<usize>, TrainError> {
        if pass.number == 0 {
            self.waited = [Duration::ZERO; 2];
        }
        self.ledger.begin(pass);
        let mut turns = Turns { central: self, comm, failure: None };
        let ran = run(&mut turns).map(|()| end_pass(&mut turns, |turns| &turns.central.ledger));
        // The error that prevented a gradient is more precise than the error of the pass.
        turns.failure.map_or(Ok(()), Err)?;
        let without = ran?;
        if pass.is_last() {
            // All gradients are in place once the ranks have summed the other values.
            let (began, mut sums) = (Instant::now(), [0.0; Sums::COUNT]);
            self.ledger.own.write(&mut sums);
            comm.all_reduce(&mut sums, ReduceOp::Sum)?;
            self.sums = Sums::read(&sums);
            self.gradients.end(comm.ranks(), pass.of);
            self.waited[0] += began.elapsed();
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
        // After the barrier, all ranks have updated their parts and read the sums.
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

    fn restore_optimizer(&mut self, steps: u64, write: Restore<'_>) -> Result<(), TrainError> {
        self.optimizer.restore(steps, write)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use unisono_train::Sgd;

    use super::*;

    /// Rank 0 waits in its pass until rank 1 has put its gradient, as a layer that normalises over the samples of all ranks does.
    #[test]
    fn rank_without_samples_does_not_delay_the_gradients_of_others() {
        let has_put = AtomicBool::new(false);
        let squares = unisono::threads(2, |mut comm| -> Result<f64, TrainError> {
            comm.set_timeout(Duration::from_secs(10));
            let has_samples = comm.rank() == 1;
            let (number, optimizer) =
                ([Parameter::new("number", [1])], OptimizerSettings::new(Sgd::default()));
            let mut central = central_storage(&mut comm, &number, &optimizer, &BucketSettings::default())?;
            assert_eq!(central.passes(&mut comm, 1, &|_| has_samples)?, 1);
            central.pass(&mut comm, Pass::ONLY, &mut |gradients| {
                if has_samples {
                    gradients.record_loss(LossSums { targets: 1.0, loss: 1.0, correct: 0.0 });
                    gradients.put(0, &mut |gradient, fill| fill.write(gradient, &[3.0]));
                    has_put.store(true, Ordering::Release);
                }
                while !has_put.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                Ok(())
            })?;
            central.square_sum(0)
        });
        assert_eq!(squares.into_iter().collect::<Result<Vec<_>, _>>().unwrap(), [9.0, 9.0]);
    }
}
