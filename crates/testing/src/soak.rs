//! The duration of the stress tests, and the repetition of a case. `./scripts/test` runs a number of cases, and `./scripts/soak` a
//! number of minutes.
//!
//! `UNISONO_SOAK=minutes=5,seed=7` requests the long form, `UNISONO_SOAK=seed=7,case=1234` a single case.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SETTING: &str = "UNISONO_SOAK";

/// The settings of stress tests.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Soak {
    /// The seed of the cases.
    pub seed: u64,
    /// `None` for the short form.
    pub minutes: Option<f64>,
    /// The only case to run, if one is repeated.
    pub case: Option<u64>,
}

impl Soak {
    /// # Panics
    /// If the setting is invalid.
    pub fn from_environment() -> Self {
        let mut soak = Self { seed: 1, ..Self::default() };
        let Ok(text) = std::env::var(SETTING) else { return soak };
        let wrong = || panic!("{SETTING} is {text:?}, but should be like minutes=5,seed=7,case=1234");
        for setting in text.split(',') {
            let Some((name, value)) = setting.split_once('=') else { wrong() };
            match name {
                "seed" => soak.seed = value.parse().unwrap_or_else(|_| wrong()),
                "minutes" => soak.minutes = Some(value.parse().unwrap_or_else(|_| wrong())),
                "case" => soak.case = Some(value.parse().unwrap_or_else(|_| wrong())),
                _ => wrong(),
            }
        }
        soak
    }

    /// Returns the setting that repeats this case.
    pub fn again(&self, case: u64) -> String {
        format!("{SETTING}=seed={},case={case}", self.seed)
    }

    /// Returns the cases of a test, `short` of them in the short form.
    pub fn cases(&self, short: u64) -> Cases {
        let (first, end) = match (self.case, self.minutes) {
            (Some(case), _) => (case, Some(case + 1)),
            (None, Some(_)) => (0, None),
            (None, None) => (0, Some(short)),
        };
        let time = self.minutes.map(|minutes| Duration::from_secs_f64(minutes * 60.0));
        let (next, failed) = (AtomicU64::new(first), AtomicBool::new(false));
        Cases { next, end, time, failed, soak: *self, started: Instant::now() }
    }
}

/// The cases of a test, shared by its threads.
#[derive(Debug)]
pub struct Cases {
    next: AtomicU64,
    end: Option<u64>,
    time: Option<Duration>,
    failed: AtomicBool,
    soak: Soak,
    started: Instant,
}

impl Cases {
    /// Returns the next case, unless the test is over.
    pub fn take(&self) -> Option<u64> {
        let is_over = self.time.is_some_and(|time| self.started.elapsed() > time);
        if is_over || self.failed.load(Ordering::Relaxed) {
            return None;
        }
        let case = self.next.fetch_add(1, Ordering::Relaxed);
        self.end.is_none_or(|end| case < end).then_some(case)
    }

    /// Runs cases on several threads until the test is over or one of them panics.
    pub fn make(&self, threads: usize, make: impl Fn(u64) + Sync) {
        let lane = || {
            while let Some(case) = self.take() {
                let hint = RepeatHint { cases: self, case };
                make(case);
                std::mem::forget(hint);
            }
        };
        std::thread::scope(|scope| {
            (0..threads).for_each(|_| drop(scope.spawn(lane)));
        });
    }

    /// Prints a line for `./scripts/soak` with the counts and the duration.
    ///
    /// # Panics
    /// If all counts are zero.
    pub fn report(&self, test: &str, counts: &[(u64, &str)]) {
        assert!(counts.iter().any(|(count, _)| *count > 0), "{test}: nothing was counted");
        let counts: Vec<_> = counts.iter().map(|(count, what)| format!("{count} {what}")).collect();
        let seconds = self.started.elapsed().as_secs_f64();
        println!("counted: {test}: {}; {seconds:.0} s, seed {}", counts.join(", "), self.soak.seed);
    }
}

/// Prints the setting that repeats a case, if the case panics.
struct RepeatHint<'a> {
    cases: &'a Cases,
    case: u64,
}

impl Drop for RepeatHint<'_> {
    fn drop(&mut self) {
        self.cases.failed.store(true, Ordering::Relaxed);
        eprintln!("to repeat this case: {}", self.cases.soak.again(self.case));
    }
}
