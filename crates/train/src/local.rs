//! Local steps: every rank steps alone for a round of several steps, then all ranks average their parameters. This algorithm differs from averaging
//! gradients, and communicates less.
//!
//! **Sources**: Stich, "Local SGD converges fast and communicates little", ICLR 2019, algorithm 1; the outer step by Douillard et
//! al., "DiLoCo: distributed low-communication training of language models" (2023), algorithm 1.

use std::fmt;
use std::str::FromStr;

use crate::gradients::Values;
use crate::{ReplicaError, TrainError};

/// The number of local steps, and the treatment of parameters after them.
///
/// ```
/// use unisono_train::{BucketSettings, LocalSteps};
///
/// let diloco = LocalSteps { steps: 100, outer: "nesterov:0.7,0.9".parse()? };
/// let settings = BucketSettings { local_steps: Some(diloco), ..BucketSettings::default() };
/// assert_eq!(diloco.to_string(), "100 steps, then nesterov:0.7,0.9");
/// # Ok::<(), unisono_train::TrainError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LocalSteps {
    /// The number of steps of a round, at least 1. A round also ends with its epoch.
    pub steps: u64,
    /// The outer step at the end of a round.
    pub outer: Outer,
}

/// The treatment of the ranks' parameters at the end of a round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Outer {
    /// Averages the parameters.
    Average,
    /// Makes a step of SGD with Nesterov momentum from the parameters at the start of the round. The gradient is those parameters minus their mean
    /// over ranks at the end of the round.
    Nesterov {
        /// The learning rate: above 0, and at most 10.
        rate: f32,
        /// The fraction of the velocity that is kept from round to round: at least 0, and below 1.
        momentum: f32,
    },
}

impl Outer {
    pub(super) fn is_valid(&self) -> bool {
        match *self {
            Self::Average => true,
            Self::Nesterov { rate, momentum } => rate > 0.0 && rate <= 10.0 && (0.0..1.0).contains(&momentum),
        }
    }
}

impl fmt::Display for Outer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Average => f.pad("average"),
            Self::Nesterov { rate, momentum } => write!(f, "nesterov:{rate},{momentum}"),
        }
    }
}

impl FromStr for Outer {
    type Err = TrainError;

    fn from_str(text: &str) -> Result<Self, TrainError> {
        let nesterov = || {
            let (rate, momentum) = text.strip_prefix("nesterov:")?.split_once(',')?;
            let (rate, momentum) = (rate.parse::<f32>().ok()?, momentum.parse::<f32>().ok()?);
            Some(Self::Nesterov { rate, momentum }).filter(Self::is_valid)
        };
        match text {
            "average" => Ok(Self::Average),
            _ => nesterov().ok_or_else(|| {
                TrainError::Setting(format!(
                    "no outer step is called `{text}`; there are average, and nesterov:RATE,MOMENTUM, such as nesterov:0.7,0.9"
                ))
            }),
        }
    }
}

impl fmt::Display for LocalSteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} steps, then {}", self.steps, self.outer)
    }
}

/// The rounds of one rank.
#[derive(Debug)]
pub struct Rounds {
    pub(super) settings: LocalSteps,
    pub(super) made: u64,
    /// The state of the outer step, by the index of the parameter. It is empty if the outer step only averages.
    outer: Vec<Remembered>,
}

/// The state of an outer step for a parameter. It is the same on all ranks.
#[derive(Debug, Default)]
struct Remembered {
    /// The values at the start of the round.
    start: Vec<f32>,
    velocity: Vec<f32>,
}

impl Rounds {
    /// Creates rounds that start from the values of this replica's parameters, which are the same on all ranks.
    pub(super) fn new(
        settings: LocalSteps,
        parameters: usize,
        values_of: Values<'_>,
    ) -> Result<Self, ReplicaError> {
        let mut outer = Vec::new();
        if settings.outer != Outer::Average {
            outer.resize_with(parameters, Remembered::default);
        }
        for (index, remembered) in outer.iter_mut().enumerate() {
            values_of(index, &mut |values| {
                *remembered = Remembered { start: values.to_vec(), velocity: vec![0.0; values.len()] };
            })?;
        }
        Ok(Self { settings, made: 0, outer })
    }

    /// Counts a step. Returns whether it is the last of the round.
    pub(super) fn step(&mut self) -> bool {
        self.made += 1;
        self.made >= self.settings.steps
    }

    pub(super) fn is_between(&self) -> bool {
        self.made == 0
    }

    /// Makes the outer step of a parameter, from the sums of its values over this many ranks.
    pub(super) fn outer_step(&mut self, index: usize, values: &mut [f32], sums: &[f32], ranks: usize) {
        let ranks = ranks as f32;
        match self.settings.outer {
            Outer::Average => values.iter_mut().zip(sums).for_each(|(value, sum)| *value = sum / ranks),
            Outer::Nesterov { rate, momentum } => {
                let Remembered { start, velocity } = &mut self.outer[index];
                let remembered = start.iter_mut().zip(velocity);
                for ((value, sum), (start, velocity)) in values.iter_mut().zip(sums).zip(remembered) {
                    let gradient = *start - sum / ranks;
                    *velocity = momentum * *velocity + gradient;
                    *start -= rate * (gradient + momentum * *velocity);
                    *value = *start;
                }
            }
        }
    }

    /// Returns the velocities of the outer step, by the index of the parameter, for saving and restoring. Returns none if the outer step only
    /// averages.
    pub(super) fn velocities(&mut self) -> impl Iterator<Item = &mut Vec<f32>> {
        self.outer.iter_mut().map(|remembered| &mut remembered.velocity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outer_steps_round_trip_through_text() {
        for text in ["average", "nesterov:0.7,0.9", "nesterov:1,0"] {
            assert_eq!(text.parse::<Outer>().unwrap().to_string(), text);
        }
        for nonsense in
            ["", "nesterov", "nesterov:0.7", "nesterov:0,0.9", "nesterov:0.7,1", "nesterov:NaN,0.9"]
        {
            let error = nonsense.parse::<Outer>().unwrap_err().to_string();
            assert!(error.contains("nesterov:RATE,MOMENTUM"), "{error}");
        }
    }

    #[test]
    fn outer_step_matches_sgd_with_nesterov_momentum() {
        let outer = Outer::Nesterov { rate: 0.5, momentum: 0.5 };
        let remembered = Remembered { start: vec![1.0], velocity: vec![0.0] };
        let mut rounds =
            Rounds { settings: LocalSteps { steps: 2, outer }, made: 2, outer: vec![remembered] };
        let mut values = [0.0];
        // The mean of two ranks is 0: the gradient 1, the velocity 1.
        rounds.outer_step(0, &mut values, &[0.0], 2);
        assert_eq!(values, [1.0 - 0.5 * 1.5]);
        // The mean is -0.75: the gradient 1 again, the velocity 1.5.
        rounds.outer_step(0, &mut values, &[-1.5], 2);
        assert_eq!(values, [0.25 - 0.5 * 1.75]);
    }
}
