//! The choice of algorithms.

use super::{Communicator, check_parts};
use crate::call::{Call, Ran, Why};
use crate::collective::{Collective, Engine, Options};
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
        if choice.vendor() == Some(Vendor::Mpi) && !self.has_mpi {
            let these =
                if self.transport == "threads" { "these are threads" } else { "this world has no MPI" };
            return Err(Error::Unsupported(format!(
                "MPI's own collectives need ranks under mpirun; {these}: choose another algorithm"
            )));
        }
        check_phases(choice)
    }

    /// Returns a [`Collective`] over this communicator with this choice, for benchmarks and tests.
    ///
    /// # Errors
    /// As [`Communicator::set_choice`]; [`Error::Aborted`] after a failure.
    pub fn collective(&mut self, choice: impl Into<Choice>) -> Result<impl Collective + '_> {
        let choice = choice.into();
        self.engine_owner.engine().check_alive()?;
        self.check_choice(&choice)?;
        Ok(Chosen { engine: self.engine_owner.engine(), options: &self.per_call.options, choice })
    }

    /// Returns the method that would carry out this call, and the reason.
    ///
    /// # Panics
    /// If the root is not a rank of this world.
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

#[derive(Debug)]
struct Chosen<'a> {
    engine: &'a mut Engine,
    options: &'a Options,
    choice: Choice,
}

impl Collective for Chosen<'_> {
    fn run(&mut self, call: &Call, buffer: &mut [u8]) -> Result<Ran> {
        if let Some(parts) = self.options.parts.as_ref().filter(|_| call.operation.has_parts()) {
            check_parts(call.count, parts);
        }
        self.engine.run(&self.choice, self.options, call, buffer)
    }
}

/// Refuses a vendor inside the nodes of an algorithm without intra-node phases, which has no name.
pub(crate) fn check_phases(choice: &Choice) -> Result<()> {
    match choice.method() {
        Some(Method::InNodes(algorithm, _)) if !is_for_vendors(algorithm) => Err(Error::Unsupported(
            format!("{algorithm} has no intra-node phases; choose {}", those_for_vendors()),
        )),
        _ => Ok(()),
    }
}
