//! The executor: runs a program on a buffer, over a transport.
//!
//! A program is [bound](Bound) once per kind of call. It determines the actions of a rank and their order. The executor adds formats of
//! elements, copies of data that must not change while in transit, and the block size that fits a core's cache.

use std::collections::VecDeque;

use unisono_collectives::program::Place;

use crate::error::{self, Error, Result};
use crate::memory::{Registry, Scratch};
use crate::method::Method;
use crate::transport::{Deadlines, Fabric, Failure, Header};

mod agreement;
mod bound;
mod capabilities;
mod format;
mod run;
#[cfg(test)]
mod tests;

pub(crate) use bound::Bound;
use run::Run;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Task<'a> {
    /// The call, of which the program may carry out a part. (A reference, since loading words that were just stored would stall behind the
    /// message that was stored for another core before.)
    pub(crate) header: &'a Header,
    pub(crate) method: Method,
    /// The longest time that a step may wait for another rank.
    pub(crate) deadlines: &'a Deadlines,
}

impl Task<'_> {
    /// Returns the error of a failure at this place, with the known state of a rank that did not arrive.
    #[cold]
    pub(crate) fn error(
        &self,
        failure: Failure,
        transport: &Fabric,
        Place { name: phase, step, .. }: Place,
    ) -> Error {
        let (operation, sequence) = (self.header.operation(), self.header.sequence());
        let (algorithm, status) = (self.method.name(), transport.status());
        let rank = status.rank();
        failure.at(error::Place { rank, operation, sequence, algorithm, phase, step }, status)
    }
}

/// Runs programs. It keeps its buffers between calls.
#[derive(Debug)]
pub(crate) struct Executor {
    widened: Scratch,
    original: Scratch,
    work: Scratch,
}

impl Executor {
    pub(crate) fn new(registry: Registry) -> Self {
        Self { widened: Scratch::default(), original: Scratch::new(registry), work: Scratch::new(registry) }
    }

    #[inline]
    pub(crate) fn run(
        &mut self,
        bound: &Bound,
        task: &Task<'_>,
        buffer: &mut [u8],
        transport: &mut Fabric,
    ) -> Result<()> {
        if bound.is_short {
            #[cfg(feature = "mpi")]
            let _driven = transport.driven();
            return run::short(bound, task, buffer, transport);
        }
        self.run_any(bound, task, (None, buffer), transport)
    }

    /// Runs a program, which sends from `input` if that is separate from the buffer.
    pub(crate) fn run_any(
        &mut self,
        bound: &Bound,
        task: &Task<'_>,
        (input, buffer): (Option<&[u8]>, &mut [u8]),
        transport: &mut Fabric,
    ) -> Result<()> {
        #[cfg(feature = "mpi")]
        let _driven = transport.driven();
        let Self { widened, original, work } = self;
        if bound.by_vendor {
            task.agree(transport)?;
        }
        let original: &[u8] = match input {
            Some(input) => input,
            None if bound.reads_original => original.copy_of(buffer)?,
            None => &[],
        };
        let (held, narrow) = match bound.format.accumulator {
            // A pass widens block by block.
            Some(_) if !bound.has_passes => {
                (widened.reserve(bound.call.count * bound.format.held_size_bytes)?, buffer)
            }
            _ => (buffer, &mut [][..]),
        };
        let posted = VecDeque::new();
        Run { bound, task, held, narrow, original, work, round: 0, posted }.run(transport)
    }
}
