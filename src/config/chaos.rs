//! Faults to inject, for tests.

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Chaos {
    pub(crate) seed: u64,
    /// The maximum delay of a message.
    pub(crate) delay_us: u64,
    /// The probability, for each message, that its link is cut.
    pub(crate) lose: f64,
}

impl Chaos {
    /// Parses `seed=7,delay_us=200,lose=0.001`, or a part of it.
    pub(super) fn read(text: &str) -> Option<Self> {
        let mut chaos = Self::default();
        for setting in text.split(',') {
            let (name, value) = setting.split_once('=')?;
            match name.trim() {
                "seed" => chaos.seed = value.trim().parse().ok()?,
                "delay_us" => chaos.delay_us = value.trim().parse().ok()?,
                "lose" => {
                    chaos.lose = value.trim().parse().ok().filter(|lose| (0.0..=1.0).contains(lose))?;
                }
                _ => return None,
            }
        }
        Some(chaos)
    }
}
