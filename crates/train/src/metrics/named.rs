//! Metrics by the names that the command line and files have for them.

use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{F1, Metric, Regression, TopK};

/// A metric that ships with the library, by its name: `top-K`, `f1`, `r2` or `mae`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Named(pub Arc<dyn Metric>);

impl TryFrom<String> for Named {
    type Error = UnknownMetric;

    fn try_from(name: String) -> Result<Self, UnknownMetric> {
        name.parse()
    }
}

impl From<Named> for String {
    fn from(Named(metric): Named) -> Self {
        metric.name()
    }
}

/// A name of no metric that ships with the library.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no metric: expected top-K, such as top-5, f1, r2 or mae")]
pub struct UnknownMetric(String);

impl FromStr for Named {
    type Err = UnknownMetric;

    fn from_str(name: &str) -> Result<Self, UnknownMetric> {
        let most = name.strip_prefix("top-").and_then(|most| most.parse().ok()).filter(|&most| most > 0);
        match (name, most) {
            ("f1", _) => Ok(Self(Arc::new(F1))),
            ("r2", _) => Ok(Self(Arc::new(Regression::R2))),
            ("mae", _) => Ok(Self(Arc::new(Regression::Mae))),
            (_, Some(most)) => Ok(Self(Arc::new(TopK(most)))),
            _ => Err(UnknownMetric(name.to_owned())),
        }
    }
}
