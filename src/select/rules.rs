//! Rules of the user: an algorithm for each range of array sizes.

use std::fmt;
use std::str::FromStr;

use unisono_collectives::Algorithm;
use unisono_collectives::names::UnknownName;

use crate::call::Why;
use crate::size;

/// Algorithms by range of sizes: `recursive-doubling:0-8K;butterfly:8K-1M;ring:1M-`.
///
/// Sizes are those of the array in bytes. A range includes its start and excludes its end. Sizes outside all ranges are selected
/// as without rules.
///
/// ```
/// use unisono::select::Rules;
///
/// let rules: Rules = "recursive-doubling:0-8K;ring:1M-".parse().unwrap();
/// assert_eq!(rules.to_string(), "recursive-doubling:0-8K;ring:1M-");
/// let error = "tree:0-8K;ring:4K-".parse::<Rules>().unwrap_err().to_string();
/// assert_eq!(error, "the rules tree:0-8K and ring:4K- are both for arrays of 4K");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rules {
    /// By size, ascending.
    rules: Vec<Rule>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Rule {
    algorithm: Algorithm,
    from_bytes: usize,
    /// `None` if the range has no upper end.
    to_bytes: Option<usize>,
}

/// The reason why a text is not a valid choice or set of rules.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each sentence names its fields")]
pub enum InvalidChoice {
    /// Unknown name.
    #[error(transparent)]
    Name(#[from] UnknownName),
    /// A syntax error.
    #[error("invalid rule {rule:?}; expected ALGORITHM:FROM-TO or ALGORITHM:FROM-, such as ring:1M-")]
    Syntax { rule: String },
    /// An empty range.
    #[error("the rule {rule} matches no size; expected increasing sizes, such as 8K-1M")]
    Empty { rule: String },
    /// Overlapping ranges.
    #[error("the rules {one} and {other} are both for arrays of {}", size::text(*both_bytes))]
    Overlap { one: String, other: String, both_bytes: usize },
}

impl Rules {
    /// Returns the algorithm for arrays of this size, and the rule that matches.
    pub(crate) fn algorithm(&self, size_bytes: usize) -> Option<(Algorithm, Why)> {
        let rule = self.rules.iter().find(|rule| rule.holds(size_bytes))?;
        let &Rule { algorithm, from_bytes, to_bytes } = rule;
        Some((algorithm, Why::Rule { from_bytes, to_bytes }))
    }
}

impl Rule {
    fn holds(&self, size_bytes: usize) -> bool {
        size_bytes >= self.from_bytes && self.to_bytes.is_none_or(|to| size_bytes < to)
    }
}

impl FromStr for Rule {
    type Err = InvalidChoice;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let syntax = || InvalidChoice::Syntax { rule: text.to_owned() };
        let (name, range) = text.split_once(':').ok_or_else(syntax)?;
        let (from, to) = range.split_once('-').ok_or_else(syntax)?;
        let bytes = |text: &str| size::bytes(text).ok_or_else(syntax);
        let from_bytes = bytes(from)?;
        let to_bytes = if to.is_empty() { None } else { Some(bytes(to)?) };
        let rule = Self { algorithm: name.parse()?, from_bytes, to_bytes };
        if rule.holds(from_bytes) { Ok(rule) } else { Err(InvalidChoice::Empty { rule: text.to_owned() }) }
    }
}

impl FromStr for Rules {
    type Err = InvalidChoice;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut rules: Vec<Rule> =
            text.split(';').map(|rule| rule.trim().parse()).collect::<Result<_, _>>()?;
        rules.sort_by_key(|rule| rule.from_bytes);
        for pair in rules.windows(2) {
            let (one, other) = (pair[0], pair[1]);
            if one.holds(other.from_bytes) {
                let (one, both_bytes) = (one.to_string(), other.from_bytes);
                return Err(InvalidChoice::Overlap { one, other: other.to_string(), both_bytes });
            }
        }
        Ok(Self { rules })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { algorithm, from_bytes, to_bytes } = *self;
        let to = to_bytes.map(size::text).unwrap_or_default();
        write!(f, "{algorithm}:{}-{to}", size::text(from_bytes))
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules: Vec<_> = self.rules.iter().map(Rule::to_string).collect();
        f.pad(&rules.join(";"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_half_open_and_gaps_match_no_rule() {
        let rules: Rules = "ring:1M-; tree:0-8K;butterfly:8K-512K".parse().unwrap();
        let algorithm = |size_bytes| rules.algorithm(size_bytes).map(|(algorithm, _)| algorithm);
        assert_eq!(algorithm(0), Some(Algorithm::Tree));
        assert_eq!(algorithm((8 << 10) - 1), Some(Algorithm::Tree));
        assert_eq!(algorithm(8 << 10), Some(Algorithm::Butterfly));
        assert_eq!(algorithm(512 << 10), None);
        assert_eq!(algorithm(usize::MAX), Some(Algorithm::Ring));
        assert_eq!(rules.to_string().parse(), Ok(rules));
    }

    #[test]
    fn invalid_rules_are_quoted_in_errors() {
        for (text, expected) in [
            ("ring:", "invalid rule \"ring:\"; expected ALGORITHM:FROM-TO"),
            ("ring:1M", "invalid rule \"ring:1M\""),
            ("ring:1M-2T", "invalid rule \"ring:1M-2T\""),
            ("ring:-8K", "invalid rule \"ring:-8K\""),
            ("ring:0-;", "invalid rule \"\""),
            ("rimg:0-8", "did you mean `ring`?"),
            ("ring:8K-8K", "the rule ring:8K-8K matches no size"),
            ("ring:1M-8K", "the rule ring:1M-8K matches no size"),
            ("ring:0-;tree:1G-", "the rules ring:0- and tree:1G- are both for arrays of 1G"),
            ("ring:0-9;tree:0-8", "are both for arrays of 0"),
        ] {
            let error = text.parse::<Rules>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
