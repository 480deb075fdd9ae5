//! The choice of algorithms.

use super::Communicator;
use crate::call::{Call, Ran, Why};
use crate::error::{Error, Result};
use crate::method::{Method, Vendor, is_for_vendors, those_for_vendors};
use crate::select::Choice;

impl Communicator {
    /// Returns the algorithm chosen for all later calls; [`Choice::Auto`] unless the environment
    /// (`UNISONO_ALGORITHM`) or [`Communicator::set_choice`] sets another.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Sets the algorithm of all later calls. All ranks set the same.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for MPI as a vendor over another transport, and for a vendor inside the nodes of an algorithm
    /// without intra-node phases.
    pub fn set_choice(&mut self, choice: impl Into<Choice>) -> Result<()> {
        let choice = choice.into();
        self.check_choice(&choice)?;
        self.choice = choice;
        Ok(())
    }

    pub(super) fn check_choice(&self, choice: &Choice) -> Result<()> {
        let Some(method) = choice.method() else { return Ok(()) };
        match method {
            _ if method.vendor() == Some(Vendor::Mpi) && !self.has_mpi => {
                let these =
                    if self.transport == "threads" { "these are threads" } else { "this world has no MPI" };
                Err(Error::Unsupported(format!(
                    "MPI's own collectives need ranks under mpirun; {these}: choose another algorithm"
                )))
            }
            Method::InNodes(algorithm, _) if !is_for_vendors(algorithm) => Err(Error::Unsupported(format!(
                "{algorithm} has no intra-node phases; choose {}",
                those_for_vendors()
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the method that would carry out this call, and the reason.
    pub fn selection(&mut self, call: &Call) -> Ran {
        match self.per_call.choice_or(&self.choice).on_host(call.operation) {
            &Choice::Method(method @ Method::Vendor(_)) => {
                Ran { method, why: Why::AskedFor, link: method.link(self.transport) }
            }
            choice => {
                self.engine_owner.engine().selection(choice, call, self.per_call.options.parts.as_ref())
            }
        }
    }
}
