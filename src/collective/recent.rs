//! A cache of recent calls and their plans.

use std::sync::Arc;

use unisono_collectives::execution::{CompiledPlan, Execution};

use crate::call::{Call, Ran, Why};
use crate::codes::Codes;
use crate::executor::{EagerSteps, capabilities};
use crate::method::Method;
use crate::select::Choice;
use crate::transport::Transport;

/// A kind of call, with everything computed once for it.
#[derive(Debug)]
pub(super) struct Recent {
    choice: Choice,
    call: Call,
    pub(super) ran: Ran,
    pub(super) method: Method,
    pub(super) codes: Codes,
    pub(super) compiled: Arc<CompiledPlan>,
    pub(super) execution: Execution,
    /// The steps in bytes, if the call is eager.
    pub(super) eager: Option<EagerSteps>,
}

impl Recent {
    pub(super) fn new(
        choice: &Choice,
        call: &Call,
        (method, why): (Method, Why),
        compiled: Arc<CompiledPlan>,
        transport: &Transport,
        ranks: usize,
    ) -> Self {
        let capabilities = capabilities(transport, ranks, call, method);
        let execution = compiled.execution(call.count, call.element_bytes(), &capabilities);
        let in_bytes =
            |steps: &Vec<_>| EagerSteps::new(steps, compiled.plan(), call, method, (transport.rank(), ranks));
        let eager = match &execution {
            Execution::Eager(steps) => Some(in_bytes(steps)),
            _ => None,
        };
        let ran = Ran { method, why, link: method.link(transport.name()) };
        let codes = Codes::new(call, method);
        Self { choice: choice.clone(), call: *call, ran, method, codes, compiled, execution, eager }
    }

    #[inline]
    pub(super) fn is_of(&self, choice: &Choice, call: &Call) -> bool {
        self.call == *call && self.choice == *choice
    }
}
