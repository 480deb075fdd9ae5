//! The learning rate over a run.

use std::f64::consts::PI;

use unisono_collectives::named;

named! {
    /// The kind of a learning rate schedule after warm-up, without its constants.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ScheduleKind: "schedule of the learning rate" {
        /// [`Schedule::Constant`].
        Constant = "constant",
        /// [`Schedule::Step`].
        Step = "step",
        /// [`Schedule::Cosine`].
        Cosine = "cosine",
    }
}

/// The schedule of the learning rate after warm-up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Schedule {
    /// The rate stays at its peak.
    Constant,
    /// The rate is multiplied by `factor` every given number of steps.
    Step {
        /// The number of steps, at least 1, counted from the start of the run including warm-up. A whole number of epochs makes the rate drop between
        /// epochs.
        every: u64,
        /// The factor.
        factor: f64,
    },
    /// The rate falls to zero along half a cosine.
    Cosine,
}

/// The learning rate of every step of a run: it rises linearly to its peak, then follows a schedule.
///
/// It depends only on the step's number, so a resumed run has the same rates as an uninterrupted one.
///
/// ```
/// use unisono_train::rate::{Rate, Schedule};
///
/// let rate = Rate::new(Schedule::Step { every: 4, factor: 0.5 }, 1.0, 0.2, 10);
/// let rates: Vec<_> = (0..10).map(|step| rate.at(step)).collect();
/// assert_eq!(rates, [0.5, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    schedule: Schedule,
    peak: f64,
    warm_up_steps: u64,
    steps: u64,
}

impl Rate {
    /// Returns the rates of a run of `steps` steps. `warm_up` is the fraction of warm-up steps, from 0 to 1, and `peak` is the rate for the global
    /// batch.
    ///
    /// # Panics
    /// If `warm_up` is outside of 0 to 1, or a step schedule drops every 0 steps.
    pub fn new(schedule: Schedule, peak: f64, warm_up: f64, steps: u64) -> Self {
        assert!((0.0..=1.0).contains(&warm_up), "a share of {warm_up} to warm up: expected 0 to 1");
        assert!(
            !matches!(schedule, Schedule::Step { every: 0, .. }),
            "a rate that falls every 0 steps: expected 1 or more"
        );
        let warm_up_steps = ((warm_up * steps as f64).round() as u64).min(steps);
        Self { schedule, peak, warm_up_steps, steps }
    }

    /// Returns the highest rate of the run.
    pub fn peak(&self) -> f64 {
        self.peak
    }

    /// Returns the rate of a step, counted from 0. Steps beyond the end of the run follow the schedule too.
    pub fn at(&self, step: u64) -> f64 {
        if step < self.warm_up_steps {
            return self.peak * (step + 1) as f64 / self.warm_up_steps as f64;
        }
        match self.schedule {
            Schedule::Constant => self.peak,
            Schedule::Step { every, factor } => {
                self.peak * factor.powi(i32::try_from(step / every).unwrap_or(i32::MAX))
            }
            Schedule::Cosine => {
                let falling = (self.steps - self.warm_up_steps).max(1);
                let progress = (step - self.warm_up_steps) as f64 / falling as f64;
                self.peak * 0.5 * (1.0 + (PI * progress.min(1.0)).cos())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cosine_schedule_rises_to_the_peak_and_falls_to_almost_zero() {
        let rate = Rate::new(Schedule::Cosine, 2.0, 0.1, 100);
        let rates: Vec<_> = (0..100).map(|step| rate.at(step)).collect();
        assert_eq!((rates[0], rates[9], rates[10]), (0.2, 2.0, 2.0));
        assert!(rates[10..].windows(2).all(|pair| pair[1] < pair[0]));
        assert!(rates[99] > 0.0 && rates[99] < 0.002);
        assert_eq!((rate.at(100), rate.at(1000)), (0.0, 0.0));
        assert!((rate.at(55) - 1.0).abs() < 1e-12, "half of the way down");
        assert_eq!(Rate::new(Schedule::Cosine, 2.0, 0.0, 1).at(0), 2.0);
    }

    #[test]
    fn every_schedule_has_the_same_warm_up() {
        for schedule in [Schedule::Constant, Schedule::Step { every: 10, factor: 0.1 }, Schedule::Cosine] {
            let rate = Rate::new(schedule, 1.0, 0.25, 16);
            assert_eq!([0, 1, 2, 3].map(|step| rate.at(step)), [0.25, 0.5, 0.75, 1.0], "{schedule:?}");
            assert_eq!(rate.at(4), 1.0);
        }
        for kind in ScheduleKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
    }

    #[test]
    fn constant_schedule_stays_and_step_schedule_falls() {
        let constant = Rate::new(Schedule::Constant, 3.0, 0.0, 10);
        assert!([0, 9, u64::MAX].iter().all(|&step| constant.at(step) == 3.0));
        let steps = Rate::new(Schedule::Step { every: 3, factor: 0.5 }, 8.0, 0.0, 10);
        assert_eq!([0, 2, 3, 5, 6, 9].map(|step| steps.at(step)), [8.0, 8.0, 4.0, 4.0, 2.0, 1.0]);
        assert_eq!(steps.at(u64::MAX), 0.0);
    }

    #[test]
    fn run_with_only_warm_up_never_falls() {
        let rate = Rate::new(Schedule::Cosine, 1.0, 1.0, 4);
        assert_eq!([0, 3].map(|step| rate.at(step)), [0.25, 1.0]);
    }
}
