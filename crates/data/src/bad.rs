//! Damaged samples: reported as errors, or skipped and counted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::mem;
use std::str::FromStr;
use std::sync::{Arc, Mutex};

use crate::pipeline::lock;
use crate::{DataError, Pass};

/// The treatment of damaged samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnBadSample {
    /// A damaged sample is an error.
    #[default]
    Error,
    /// A damaged sample is left out of its batch.
    Skip {
        /// The maximum number of distinct samples that each rank may skip; `None` for no limit.
        most: Option<usize>,
    },
}

impl OnBadSample {
    pub(crate) fn skips(self) -> bool {
        self != Self::Error
    }
}

impl fmt::Display for OnBadSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error => f.write_str("error"),
            Self::Skip { most: None } => f.write_str("skip"),
            Self::Skip { most: Some(most) } => write!(f, "skip:{most}"),
        }
    }
}

impl FromStr for OnBadSample {
    type Err = DataError;

    fn from_str(name: &str) -> Result<Self, DataError> {
        match (name, name.strip_prefix("skip:").map(str::parse)) {
            ("error", _) => Ok(Self::Error),
            ("skip", _) => Ok(Self::Skip { most: None }),
            (_, Some(Ok(most))) => Ok(Self::Skip { most: Some(most) }),
            _ => Err(DataError::other(format!(
                "unknown `{name}`: expected `error`, `skip`, or `skip:N` for at most N samples"
            ))),
        }
    }
}

/// Damaged samples that were skipped since the last report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Skipped {
    /// The number of skips: one for every batch that lacks a sample.
    pub count: u64,
    /// The problems of samples that were not skipped before, each with the name of the sample. The number before it is the sample's index in the data
    /// set, which is the same on all ranks.
    pub problems: Vec<(usize, String)>,
}

/// Decides about damaged samples of a data set, and records the skipped ones. Clones share the record.
#[derive(Debug, Clone, Default)]
pub(crate) struct BadSamples {
    policy: OnBadSample,
    found: Arc<Mutex<Found>>,
}

#[derive(Debug, Default)]
struct Found {
    samples: BTreeSet<usize>,
    /// The unreported skips of each training epoch. Epochs are prepared ahead.
    training: BTreeMap<u64, u64>,
    /// The unreported skips in evaluations.
    evaluation: u64,
    problems: Vec<(usize, String)>,
}

impl BadSamples {
    pub(crate) fn new(policy: OnBadSample) -> Self {
        Self { policy, ..Self::default() }
    }

    /// Returns whether samples with this error may be skipped. A system error does not mean that the sample is damaged.
    pub(crate) fn may_skip(&self, error: &DataError) -> bool {
        self.policy.skips() && error.is_damage()
    }

    /// Records a sample to skip, in a batch of a pass, or before the first batch (`None`). Returns the error if it may not be skipped.
    pub(crate) fn judge(&self, sample: usize, pass: Option<Pass>, error: DataError) -> Result<(), DataError> {
        let OnBadSample::Skip { most } = self.policy else { return Err(error) };
        if !self.may_skip(&error) {
            return Err(error);
        }
        let mut found = lock(&self.found);
        match pass {
            Some(Pass::Training { epoch, .. }) => *found.training.entry(epoch).or_default() += 1,
            Some(Pass::Evaluation) => found.evaluation += 1,
            None => (),
        }
        if !found.samples.contains(&sample) {
            let skipped = found.samples.len();
            if most.is_some_and(|most| skipped >= most) {
                return Err(DataError::other(format!(
                    "{error}; {skipped} damaged samples were skipped before, which is as many as may be"
                )));
            }
            found.samples.insert(sample);
            found.problems.push((sample, error.to_string()));
        }
        Ok(())
    }

    /// Returns the samples skipped since the last call, except in epochs after this one.
    pub(crate) fn news(&self, epoch: u64) -> Skipped {
        let mut found = lock(&self.found);
        let later = found.training.split_off(&(epoch + 1));
        let training: u64 = mem::replace(&mut found.training, later).into_values().sum();
        let count = training + mem::take(&mut found.evaluation);
        Skipped { count, problems: mem::take(&mut found.problems) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn damaged(sample: usize) -> DataError {
        DataError::file(format!("{sample}.png"), "is damaged")
    }

    #[test]
    fn policies_round_trip_through_text() {
        for name in ["error", "skip", "skip:0", "skip:12"] {
            assert_eq!(name.parse::<OnBadSample>().unwrap().to_string(), name);
        }
        for name in ["", "skip:", "skip:-1", "skip:many", "ignore"] {
            let message = name.parse::<OnBadSample>().unwrap_err().to_string();
            assert!(message.contains(&format!("unknown `{name}`: expected `error`, `skip`")), "{message}");
        }
    }

    #[test]
    fn a_sample_is_named_once_and_counted_in_every_batch_of_its_epoch() {
        let bad = BadSamples::new(OnBadSample::Skip { most: Some(2) });
        let training = |epoch| Some(Pass::Training { seed: 1, epoch });
        for (sample, pass) in
            [(4, None), (4, training(1)), (4, training(2)), (7, Some(Pass::Evaluation)), (7, training(1))]
        {
            bad.clone().judge(sample, pass, damaged(sample)).unwrap();
        }
        let problems = [4, 7].map(|sample| (sample, format!("`{sample}.png`: is damaged"))).to_vec();
        assert_eq!(bad.news(1), Skipped { count: 3, problems });
        bad.judge(7, training(2), damaged(7)).unwrap();
        assert_eq!(bad.news(2), Skipped { count: 2, problems: vec![] });
        assert_eq!(bad.news(2), Skipped::default());
        let message = bad.judge(1, training(3), damaged(1)).unwrap_err().to_string();
        assert_eq!(
            message,
            "`1.png`: is damaged; 2 damaged samples were skipped before, which is as many as may be"
        );
    }

    #[test]
    fn errors_other_than_damage_are_not_skipped() {
        assert!(BadSamples::default().judge(0, None, damaged(0)).is_err());
        let unread =
            DataError::Read { path: "0.png".into(), error: std::io::ErrorKind::PermissionDenied.into() };
        assert!(BadSamples::new(OnBadSample::Skip { most: None }).judge(0, None, unread).is_err());
    }
}
