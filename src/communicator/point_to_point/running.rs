//! The execution of messages, blocking or in flight with their own buffers.

use std::sync::Arc;
use std::time::Instant;

use unisono_collectives::Rank;

use super::Communicator;
use crate::dtype::DType;
use crate::error::Result;
use crate::request::{Driver, Request};
use crate::transport::{MessageOptions, Messages, Parts, Received, Sent};

/// The name of an exchange in errors.
pub(super) const EXCHANGE: Option<&str> = Some("exchange");

impl Driver for Messages {
    fn drive_until(&self, is_done: &dyn Fn() -> bool) {
        Self::drive_until(self, is_done);
    }
}

impl Communicator {
    fn message_options(&self, dtype: DType, operation: Option<&'static str>) -> MessageOptions {
        let options = &self.per_call.options;
        let deadlines = match self.engine_owner.here() {
            Some(engine) => engine.deadlines(options),
            None => options.deadlines(&self.engine_owner.limits().usual).into_owned(),
        };
        MessageOptions { dtype, tag: options.tag, label: options.label, deadlines, operation }
    }

    /// Sends and receives at most one message each, and returns the sender of the received one.
    pub(super) fn run_messages(
        &mut self,
        dtype: DType,
        operation: Option<&'static str>,
        outgoing: Option<Sent<'_>>,
        incoming: Option<Received<'_>>,
    ) -> Result<Option<Rank>> {
        let options = self.message_options(dtype, operation);
        // While collectives are in flight, this rank may start one during the call.
        let is_alone = self.engine_owner.here().is_some();
        #[cfg(feature = "mpi")]
        let _driven = self.engine_owner.here().and_then(|engine| engine.transport.driven());
        let done = self.messages.run(&options, outgoing, incoming, is_alone);
        match self.engine_owner.here_mut() {
            Some(engine) if done.is_err() => engine.settle(done),
            _ => done,
        }
    }

    /// Starts to send and receive at most one message each. The request returns the result of `finish` for the buffer and the sender.
    pub(super) fn start_messages<B: Send + 'static, R: Send + 'static>(
        &mut self,
        (dtype, operation): (DType, Option<&'static str>),
        buffer: B,
        parts: impl FnOnce(&mut B) -> Parts<'_>,
        finish: fn(B, Option<Rank>) -> R,
    ) -> Result<Request<R>> {
        self.check_in_flight()?;
        let options = self.message_options(dtype, operation);
        let began = Instant::now();
        let (request, outcome) = Request::driven_by(Arc::new(self.messages.clone()));
        let on_end = move |ended: Result<(B, Option<Rank>)>| {
            outcome.end(began, ended.map(|(buffer, from)| finish(buffer, from)));
        };
        self.messages.start(&options, buffer, parts, on_end)?;
        Ok(request)
    }
}
