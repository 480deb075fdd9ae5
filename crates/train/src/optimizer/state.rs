//! Optimizer state, for checkpoints.

use super::Optimizer;

/// The reason why an optimizer cannot restore a state: an entry that it does not use, or that is missing, given twice, or of
/// another size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StateError(String);

impl Optimizer {
    /// Returns the state: name, parameter, and one number per element of the parameter. [`Optimizer::steps`]
    /// is part of it too.
    pub fn state(&self) -> impl Iterator<Item = (&'static str, usize, &[f32])> {
        let moments = self.settings.rule.state_names().iter().zip(&self.moments);
        moments.flat_map(move |(&name, moment)| {
            let parameters = self.parameters.iter().enumerate();
            parameters.map(move |(index, parameter)| (name, index, &moment[parameter.range.clone()]))
        })
    }

    /// Restores, to the last bit, what [`Optimizer::state`] returned after this many steps; in any order.
    ///
    /// # Errors
    /// [`StateError`] if it is not the complete state of such an optimizer. Then nothing has changed.
    pub fn restore<'a>(
        &mut self,
        steps: u64,
        state: impl IntoIterator<Item = (&'a str, usize, &'a [f32])>,
    ) -> Result<(), StateError> {
        let (names, count) = (self.settings.rule.state_names(), self.parameters.len());
        // By moment, then by parameter; copied only once the state is known to be complete.
        let mut found: Vec<Option<&[f32]>> = vec![None; names.len() * count];
        for (name, index, elements) in state {
            let moment = names.iter().position(|&moment| moment == name);
            let (Some(moment), Some(parameter)) = (moment, self.parameters.get(index)) else {
                let (optimizer, remembered) = (self.settings.rule.name(), names.join(" and "));
                return Err(StateError(format!(
                    "{optimizer} remembers no `{name}` of parameter {index}: it remembers {remembered} of {count} parameters; is this \
                     the state of another optimizer or model?"
                )));
            };
            let (have, expected) = (elements.len(), parameter.range.len());
            if have != expected {
                return Err(StateError(format!(
                    "`{name}` of parameter {index} has {have} elements: expected {expected}, as the parameter has"
                )));
            }
            if found[moment * count + index].replace(elements).is_some() {
                return Err(StateError(format!(
                    "`{name}` of parameter {index} is given twice: expected once"
                )));
            }
        }
        if let Some(missing) = found.iter().position(Option::is_none) {
            let (name, index) = (names[missing / count], missing % count);
            return Err(StateError(format!(
                "`{name}` of parameter {index} is missing; is this the state of another optimizer or model?"
            )));
        }
        let mut found = found.into_iter().flatten();
        for moment in &mut self.moments {
            for (parameter, elements) in self.parameters.iter().zip(&mut found) {
                moment[parameter.range.clone()].copy_from_slice(elements);
            }
        }
        self.steps = steps;
        Ok(())
    }
}
