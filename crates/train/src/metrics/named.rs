//! Metrics by name, for the command line and files.

use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{F1, Metric, Regression, TopK};
use crate::error::TrainError;

/// A metric that ships with the library, by its name: `top-K`, `f1`, `r2` or `mae`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Named(pub Arc<dyn Metric>);

impl TryFrom<String> for Named {
    type Error = TrainError;

    fn try_from(name: String) -> Result<Self, TrainError> {
        name.parse()
    }
}

impl From<Named> for String {
    fn from(Named(metric): Named) -> Self {
        metric.name()
    }
}

impl FromStr for Named {
    type Err = TrainError;

    fn from_str(name: &str) -> Result<Self, TrainError> {
        let most = name.strip_prefix("top-").and_then(|most| most.parse().ok()).filter(|&most| most > 0);
        match (name, most) {
            ("f1", _) => Ok(Self(Arc::new(F1))),
            ("r2", _) => Ok(Self(Arc::new(Regression::R2))),
            ("mae", _) => Ok(Self(Arc::new(Regression::Mae))),
            (_, Some(most)) => Ok(Self(Arc::new(TopK(most)))),
            _ => Err(TrainError::Setting(format!(
                "`{name}` is no metric: expected top-K, such as top-5, f1, r2 or mae"
            ))),
        }
    }
}
