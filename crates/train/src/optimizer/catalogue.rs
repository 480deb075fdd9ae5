//! The optimizers that the command line supports.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{AdamW, Lamb, Lion, Sgd, UpdateRule};
use crate::TrainError;

/// An optimizer by its name, such as `adamw`. Constants may follow: `adamw:beta2=0.95,amsgrad=true`.
///
/// ```
/// use unisono_train::NamedRule;
/// assert_eq!("lion:beta1=0.95".parse::<NamedRule>()?.0.name(), "lion");
/// let unknown = "lion:momentum=0.9".parse::<NamedRule>().unwrap_err().to_string();
/// assert!(unknown.contains("unknown field `momentum`"));
/// # Ok::<(), unisono_train::TrainError>(())
/// ```
#[derive(Debug, Clone)]
pub struct NamedRule(pub Arc<dyn UpdateRule>);

impl NamedRule {
    /// Returns this optimizer.
    pub fn new(rule: impl UpdateRule) -> Self {
        Self(Arc::new(rule))
    }
}

impl FromStr for NamedRule {
    type Err = TrainError;

    fn from_str(text: &str) -> Result<Self, TrainError> {
        let unknown = |why: String| TrainError::Setting(format!("`{text}` is no optimizer: {why}"));
        let (name, constants) = text.split_once(':').unwrap_or((text, ""));
        let mut given = Map::new();
        let add = |text: &str| -> Result<(), String> {
            let (name, value) =
                text.split_once('=').ok_or_else(|| format!("`{text}` is no CONSTANT=VALUE"))?;
            let expected = || format!("the {name} is `{value}`: expected a number, true or false");
            let value: Value = value.parse().map_err(|_| expected())?;
            match given.insert(name.to_owned(), value) {
                Some(_) => Err(format!("the {name} is given twice")),
                None => Ok(()),
            }
        };
        let mut constants = constants.split(',').filter(|text| !text.is_empty());
        constants.try_for_each(add).map_err(unknown)?;
        let Some((_, build)) = CATALOGUE.iter().find(|(known, _)| *known == name) else {
            return Err(unknown(format!("expected {}", names().collect::<Vec<_>>().join(", "))));
        };
        let rule = build(given.into()).map_err(|error| unknown(error.to_string()))?;
        rule.check().map_err(unknown)?;
        Ok(Self(rule))
    }
}

impl fmt::Display for NamedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.0.name(), self.0.constants())
    }
}

type Build = fn(Value) -> serde_json::Result<Arc<dyn UpdateRule>>;

const CATALOGUE: &[(&str, Build)] =
    &[("sgd", build::<Sgd>), ("adamw", build::<AdamW>), ("lion", build::<Lion>), ("lamb", build::<Lamb>)];

fn build<U: UpdateRule + DeserializeOwned>(constants: Value) -> serde_json::Result<Arc<dyn UpdateRule>> {
    Ok(Arc::new(serde_json::from_value::<U>(constants)?))
}

/// Returns the names that a [`NamedRule`] may have.
pub fn names() -> impl Iterator<Item = &'static str> {
    CATALOGUE.iter().map(|(name, _)| *name)
}
