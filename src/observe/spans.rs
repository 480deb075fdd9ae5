//! Spans: parts of the program in the trace.

use std::borrow::Cow;
use std::time::Instant;

use super::hub;
use super::timeline::of_thread;

/// A part of the program in the trace, from [`span`] until it is dropped.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct Span(Option<(Cow<'static, str>, Instant)>);

/// Begins a span of this thread in the trace of its rank (`UNISONO_TRACE`), such as a forward pass. Spans of a thread may nest.
/// Without a trace, it costs one comparison.
///
/// The rank is that of the last call of this thread. On a thread without calls, it is the first rank of the process.
///
/// ```
/// use unisono::{ReduceOp, trace};
///
/// let ended = unisono::threads(2, |mut comm| -> unisono::Result<()> {
///     let mut gradients = {
///         let _span = trace::span("backward");
///         vec![comm.rank() as f32; 1000]
///     };
///     comm.all_reduce(&mut gradients, ReduceOp::Mean).map(drop)
/// });
/// assert!(ended.iter().all(Result::is_ok), "{ended:?}");
/// ```
pub fn span(name: impl Into<Cow<'static, str>>) -> Span {
    Span(hub::is_on().then(|| (name.into(), Instant::now())))
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some((name, began)) = self.0.take() {
            record(name, began, Instant::now());
        }
    }
}

/// Records a span that the caller has measured, as [`span`] does.
pub fn record(name: impl Into<Cow<'static, str>>, began: Instant, ended: Instant) {
    if hub::is_on()
        && let Some(timeline) = of_thread().or_else(hub::first_timeline)
    {
        timeline.span(name.into(), began, ended);
    }
}
