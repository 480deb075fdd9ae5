//! The reason for the choice of a method.

use std::fmt;

use unisono_collectives::Algorithm;

use crate::size;

/// The reason for the choice of a call's method. `Display` gives a text for users.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Why {
    /// The caller chose the method by name.
    AskedFor,
    /// The caller has a rule for arrays of this size.
    Rule {
        /// The smallest size of the rule.
        from_bytes: usize,
        /// The end of the range, exclusive; `None` if it is open.
        to_bytes: Option<usize>,
    },
    /// The cost model predicts that it is fastest.
    Predicted {
        /// The predicted time.
        time_us: f64,
        /// The next best algorithm and its predicted time.
        next: Option<(Algorithm, f64)>,
    },
    /// No other algorithm offers the operation.
    OnlyOne,
    /// A default for worlds too large to run the cost model before a call.
    Default(&'static str),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::AskedFor => write!(f, "requested"),
            Self::Rule { from_bytes, to_bytes } => {
                let to = to_bytes.map(size::text).unwrap_or_default();
                write!(f, "a rule for {}-{to}", size::text(from_bytes))
            }
            Self::Predicted { time_us, next: None } => write!(f, "predicted: {}", microseconds(time_us)),
            Self::Predicted { time_us, next: Some((next, next_us)) } => {
                let (time_us, next_us) = (microseconds(time_us), microseconds(next_us));
                write!(f, "predicted fastest: {time_us}, then {next} {next_us}")
            }
            Self::OnlyOne => write!(f, "no other offers it"),
            Self::Default(reason) => write!(f, "{reason}"),
        }
    }
}

/// Formats a time with at least two digits.
fn microseconds(time_us: f64) -> String {
    let digits = if time_us < 10.0 { 2 } else { usize::from(time_us < 1000.0) };
    format!("{time_us:.digits$} us")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_texts() {
        let text = |why: Why| why.to_string();
        assert_eq!(text(Why::Rule { from_bytes: 8 << 10, to_bytes: Some(1 << 20) }), "a rule for 8K-1M");
        assert_eq!(text(Why::Rule { from_bytes: 0, to_bytes: None }), "a rule for 0-");
        let next = Some((Algorithm::Ring, 1234.56));
        assert_eq!(
            text(Why::Predicted { time_us: 12.1, next }),
            "predicted fastest: 12.1 us, then ring 1235 us"
        );
        assert_eq!(text(Why::Predicted { time_us: 0.5, next: None }), "predicted: 0.50 us");
    }
}
