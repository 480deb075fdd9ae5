//! Means of gradients, for frameworks whose programs have their own training loop.

use unisono::Communicator;

use crate::compare;
use crate::{BucketSettings, Buckets, Gradients as _, LossSums, Parameter, Pass, ReplicaError, TrainError};

/// Averages the gradients of a model over all ranks, in buckets. A bucket is in flight while the next ones are packed.
#[derive(Debug)]
pub struct Means {
    /// The parameters, followed by an array with a 1 for each parameter of which this rank has a gradient.
    arrays: Vec<Parameter>,
    buckets: Buckets,
}

impl Means {
    /// Prepares to average the gradients of these parameters. Called by all ranks.
    ///
    /// # Errors
    /// [`TrainError::ModelsDiffer`] on all ranks, if the parameters of a rank differ from rank 0's. Errors of the collectives.
    pub fn new(comm: &mut Communicator, mut parameters: Vec<Parameter>) -> Result<Self, TrainError> {
        compare::parameters(comm, &parameters)?;
        parameters.push(Parameter::new("", [parameters.len()]));
        let buckets = Buckets::new(comm, &parameters, &BucketSettings::default())?;
        Ok(Self { arrays: parameters, buckets })
    }

    /// Returns the parameters.
    pub fn parameters(&self) -> &[Parameter] {
        &self.arrays[..self.arrays.len() - 1]
    }

    /// Returns, for each parameter, the sum of all ranks' gradients divided by the sum of their weights; `None` if no rank has a gradient. `own`
    /// holds this rank's gradients in the order of the parameters. `visit` calls its second argument with the values of a gradient. Called by all
    /// ranks.
    ///
    /// # Errors
    /// On all ranks, if a mean is not finite, all weights are 0, or `visit` returned an error on a rank before it visited the values: that rank
    /// returns the error of `visit`. Errors of the collectives.
    ///
    /// # Panics
    /// If a gradient has another size than its parameter.
    pub fn of<G>(
        &mut self,
        comm: &mut Communicator,
        own: &[Option<G>],
        weight: f64,
        visit: impl Fn(&G, &mut dyn FnMut(&[f32])) -> Result<(), ReplicaError>,
    ) -> Result<Vec<Option<Vec<f32>>>, TrainError> {
        let mut filling = self.buckets.fill(comm, Pass::ONLY);
        filling.record_loss(LossSums { targets: weight, ..LossSums::default() });
        // The order in which buckets are launched: from the last gradient to the first.
        let reached: Vec<f32> = own.iter().map(|gradient| f32::from(u8::from(gradient.is_some()))).collect();
        filling.put(own.len(), &mut |target, fill| fill.write(target, &reached));
        let mut seen = Ok(());
        for (index, gradient) in own.iter().enumerate().rev() {
            let Some(gradient) = gradient else { continue };
            let mut is_put = false;
            let visited = visit(gradient, &mut |values: &[f32]| {
                filling.put(index, &mut |target, fill| fill.write(target, values));
                is_put = true;
            });
            if visited.is_err() && !is_put {
                // The other ranks must not take the mean without this gradient.
                filling.put(index, &mut |target, _| target.fill(f32::NAN));
            }
            seen = seen.and(visited);
        }
        filling.end()?;
        let means = self.means();
        // Also after an error: the program may continue, and all buckets of a step must complete before the next step.
        self.buckets.land_all()?;
        seen?;
        means
    }

    fn means(&mut self) -> Result<Vec<Option<Vec<f32>>>, TrainError> {
        let weight = self.buckets.sums()?.tally.targets;
        if weight == 0.0 {
            let why = "no rank has a target: expected at least one among all ranks";
            return Err(TrainError::Setting(why.to_owned()));
        }
        let last = self.arrays.len() - 1;
        let reached = self.buckets.gradient(last)?.to_vec();
        let mut means = Vec::with_capacity(last);
        for (index, ranks) in reached.into_iter().enumerate() {
            if ranks == 0.0 {
                means.push(None);
                continue;
            }
            let mean = quotients(self.buckets.gradient(index)?, weight);
            // A loop without an exit, so that the compiler vectorises it.
            if !mean.iter().fold(true, |are_finite, value| are_finite & value.is_finite()) {
                let value = mean.iter().copied().find(|value| !value.is_finite()).unwrap_or(f32::NAN);
                return Err(TrainError::Setting(format!(
                    "the gradient of parameter `{}` is not finite: it has the value {value}",
                    self.arrays[index].name
                )));
            }
            means.push(Some(mean));
        }
        Ok(means)
    }
}

/// Returns the sums divided by a weight, each rounded once.
fn quotients(sums: &[f32], weight: f64) -> Vec<f32> {
    let narrow = weight as f32;
    if f64::from(narrow) == weight {
        // This takes a third of the time and gives the same bits: the quotient of two `f32` numbers is unchanged if it is first rounded to `f64`
        // (Figueroa, "When is double rounding innocuous?", 1995).
        return sums.iter().map(|sum| sum / narrow).collect();
    }
    sums.iter().map(|&sum| (f64::from(sum) / weight) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_visit_of_one_rank_fails_all() {
        let ended = unisono::threads(2, |mut comm| {
            let parameters = vec![Parameter::new("weight", [3]), Parameter::new("bias", [1])];
            let mut means = Means::new(&mut comm, parameters).unwrap();
            let (rank, own) = (comm.rank(), [Some(vec![1.0_f32; 3]), Some(vec![1.0])]);
            let ended = means.of(&mut comm, &own, 1.0, |gradient: &Vec<f32>, put| {
                if rank == 1 && gradient.len() == 3 {
                    return Err("the device is lost".into());
                }
                put(gradient);
                Ok(())
            });
            ended.unwrap_err().to_string()
        });
        let other = "the gradient of parameter `weight` is not finite: it has the value NaN";
        assert_eq!(ended, [other, "the device is lost"]);
    }

    #[test]
    fn means_after_a_failed_collective_are_errors() {
        unisono::threads(2, |mut comm| {
            let mut means = Means::new(&mut comm, vec![Parameter::new("weight", [1])]).unwrap();
            if comm.rank() == 1 {
                return comm.fail("the program has changed its mind");
            }
            for _ in 0..2 {
                let ended = means.of(&mut comm, &[Some([1.0])], 1.0, |gradient: &[f32; 1], put| {
                    put(gradient);
                    Ok(())
                });
                let error = ended.unwrap_err().to_string();
                assert!(error.contains("the program has changed its mind"), "{error}");
            }
        });
    }

    #[test]
    fn f32_and_f64_quotients_have_the_same_bits() {
        let sums: Vec<f32> = (0..20_000_u32).map(|n| f32::from_bits(n.wrapping_mul(0x9e37_79b9))).collect();
        let sums: Vec<f32> = sums.into_iter().filter(|sum| sum.is_finite()).collect();
        for targets in [1.0, 2.0, 3.0, 7.0, 96.0, 1000.0, 16_777_215.0, 16_777_217.0] {
            let expected: Vec<_> =
                sums.iter().map(|&sum| ((f64::from(sum) / targets) as f32).to_bits()).collect();
            assert!(quotients(&sums, targets).iter().map(|mean| mean.to_bits()).eq(expected), "{targets}");
        }
    }
}
