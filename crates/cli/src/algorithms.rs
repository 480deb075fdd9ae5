//! The option value for algorithms: a name, or `all`.

use clap::builder::TypedValueParser;
use unisono::Algorithm;
use unisono_collectives::names::UnknownName;

use super::values::named;

/// The algorithms that one name stands for.
#[derive(Debug, Clone)]
pub(super) struct Algorithms(pub(super) Vec<Algorithm>);

/// Parses the name of an algorithm, or `all`.
pub(super) fn algorithms() -> impl TypedValueParser<Value = Algorithms> {
    let parse = |name: &str| -> Result<_, UnknownName> {
        match name {
            "all" => Ok(Algorithms(Algorithm::ALL.to_vec())),
            _ => Ok(Algorithms(vec![name.parse()?])),
        }
    };
    named(["all"].into_iter().chain(Algorithm::ALL.map(Algorithm::name)), parse)
}
