//! A last stage of the input pipeline, which passes batches on to the device of the model.

use std::fmt;
use std::sync::Arc;

use unisono_data::{DataError, Pipeline, Threads};

/// What passes batches on, ahead of whoever asks for them.
pub struct Ahead<B>(Arc<PassOn<B>>);

type PassOn<B> = dyn Fn(B) -> Result<B, DataError> + Send + Sync;

impl<B> Ahead<B> {
    /// Passes batches on by this function.
    pub fn new(pass_on: impl Fn(B) -> Result<B, DataError> + Send + Sync + 'static) -> Self {
        Self(Arc::new(pass_on))
    }
}

impl<B> Clone for Ahead<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B> fmt::Debug for Ahead<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ahead").finish_non_exhaustive()
    }
}

/// The same elements, whose batches are passed on by a thread of a stage, two elements ahead of the consumer: `in_element` passes on those
/// of one.
pub(crate) fn passed_on<T: Send + 'static, B: 'static>(
    elements: Pipeline<T>,
    ahead: &Option<Ahead<B>>,
    in_element: impl Fn(T, &PassOn<B>) -> Result<T, DataError> + Send + Sync + 'static,
) -> Pipeline<T> {
    let Some(Ahead(pass_on)) = ahead.clone() else { return elements };
    elements.map(Threads::Fixed(1), move |element| in_element(element, &*pass_on)).named("device")
}
