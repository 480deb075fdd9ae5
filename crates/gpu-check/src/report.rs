//! The result of a check as a line of JSON.

use std::time::Instant;

use serde_json::{Map, Value, json};
use unisono::{Choice, Communicator, ReduceOp};

/// The figures of a check that passed, or the reason why it did not.
pub(crate) type Outcome = Result<Figures, Failure>;

#[derive(Debug, Default)]
pub(crate) struct Figures(Map<String, Value>);

impl Figures {
    /// Returns the number of ranks, and the route of arrays.
    pub(crate) fn of(comm: &Communicator, route: &str) -> Self {
        Self::default().with("ranks", comm.ranks()).with("route", route)
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    /// Returns the outcome: the check passed if there is no reason against it.
    pub(crate) fn unless(self, why: Option<String>) -> Outcome {
        match why {
            None => Ok(self),
            Some(why) => Err(Failure::Missed(why, self)),
        }
    }
}

/// The reason why a check did not pass.
pub(crate) enum Failure {
    /// A requirement is missing.
    Skipped(String),
    Failed(String),
    /// The check ran, and found an error or a figure outside its limit.
    Missed(String, Figures),
}

impl From<unisono::Error> for Failure {
    fn from(error: unisono::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<cudarc::driver::DriverError> for Failure {
    fn from(error: cudarc::driver::DriverError) -> Self {
        Self::Failed(format!("CUDA: {error}"))
    }
}

/// Returns a line with `check` and `status` first, then `reason` if there is one, then the figures.
pub(crate) fn line(name: &str, outcome: Outcome) -> String {
    let (status, reason, figures) = match outcome {
        Ok(figures) => ("passed", None, figures),
        Err(Failure::Skipped(why)) => ("skipped", Some(why), Figures::default()),
        Err(Failure::Failed(why)) => ("failed", Some(why), Figures::default()),
        Err(Failure::Missed(why, figures)) => ("failed", Some(why), figures),
    };
    let mut fields = vec![("check".to_owned(), json!(name)), ("status".to_owned(), json!(status))];
    fields.extend(reason.map(|reason| ("reason".to_owned(), json!(reason))));
    fields.extend(figures.0);
    // Joined as text, since a map would sort the fields.
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{}:{value}", json!(name))).collect();
    format!("{{{}}}", fields.join(","))
}

/// Adds up a number over all ranks, on the host.
pub(crate) fn sum_of_all(comm: &mut Communicator, own: u64) -> Result<u64, Failure> {
    let mut sum = [own];
    comm.set_choice(Choice::Auto)?;
    comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    Ok(sum[0])
}

pub(crate) fn us_since(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e6
}

/// Returns the median.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Rounds to a readable number of digits.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
