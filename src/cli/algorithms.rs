//! Algorithms on the command line: a name, or all.

use unisono::Algorithm;
use unisono_collectives::names::UnknownName;

/// What one name stands for.
#[derive(Debug, Clone)]
pub(super) struct Algorithms(pub(super) Vec<Algorithm>);

pub(super) fn algorithms(name: &str) -> Result<Algorithms, UnknownName> {
    match name {
        "all" => Ok(Algorithms(Algorithm::ALL.to_vec())),
        _ => Ok(Algorithms(vec![name.parse()?])),
    }
}
