//! The learning rate over a run.

use std::f64::consts::PI;

/// Rises in a straight line to its peak, then falls to zero along half a cosine.
#[derive(Debug, Clone)]
pub(super) struct Rate {
    peak: f64,
    warm_up_steps: usize,
    steps: usize,
    made: usize,
}

impl Rate {
    /// A run of `steps` steps, of which the share `warm_up` warms up.
    pub(super) fn new(peak: f64, warm_up: f64, steps: usize) -> Self {
        let warm_up_steps = (warm_up * steps as f64).round() as usize;
        Self { peak, warm_up_steps, steps, made: 0 }
    }

    pub(super) fn peak(&self) -> f64 {
        self.peak
    }

    /// The rate of the next step.
    pub(super) fn next(&mut self) -> f64 {
        let step = self.made;
        self.made += 1;
        if step < self.warm_up_steps {
            return self.peak * (step + 1) as f64 / self.warm_up_steps as f64;
        }
        let falling = (self.steps - self.warm_up_steps).max(1);
        let progress = (step - self.warm_up_steps) as f64 / falling as f64;
        self.peak * 0.5 * (1.0 + (PI * progress.min(1.0)).cos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rises_to_the_peak_and_falls_to_nearly_nothing() {
        let mut rate = Rate::new(2.0, 0.1, 100);
        let rates: Vec<_> = (0..100).map(|_| rate.next()).collect();
        assert_eq!((rates[0], rates[9], rates[10]), (0.2, 2.0, 2.0));
        assert!(rates[10..].windows(2).all(|pair| pair[1] < pair[0]));
        assert!(rates[99] > 0.0 && rates[99] < 0.002);
        assert_eq!(Rate::new(2.0, 0.0, 1).next(), 2.0);
    }
}
