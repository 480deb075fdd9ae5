//! The one interface: our planned collectives and a vendor's own are called in the same way, so that
//! benchmarks and tests compare like with like.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use unisono_collectives::{Algorithm, Operation, Topology};

use crate::call::{Call, Ran};
use crate::error::{Error, Result};
use crate::executor::{Executor, Prepared, Task};
use crate::select::{self, Choice, Selection, select};
use crate::transport::Transport;

/// Something that can carry out collective calls for one rank.
///
/// All ranks of the world make the same calls in the same order. [`crate::Communicator::collective`] gives
/// one.
pub trait Collective {
    /// Carries out a call in place.
    ///
    /// `buffer` holds `call.count` elements of `call.dtype`, aligned as that type is; what becomes of them,
    /// [`Operation`] says.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] if this cannot do that; the call is then as good as not made. Any
    /// other error ends the use of the communicator.
    ///
    /// # Panics
    /// If the buffer has another size.
    fn run(&mut self, call: &Call, buffer: &mut [u8]) -> Result<Ran>;
}

/// What carries out plans: the transport, the executor, and the plans made so far.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) transport: Transport,
    pub(crate) topology: Topology,
    pub(crate) timeout: Duration,
    executor: Executor,
    /// A program makes few different calls, many times. `None` for what an algorithm does not offer.
    plans: HashMap<(Algorithm, Operation), Option<Arc<Prepared>>>,
    /// The call before, and what carried it out: most calls are like the one before.
    latest: Option<Latest>,
    /// How many calls were made so far.
    sequence: u64,
    /// What this rank failed of.
    failure: Option<String>,
}

#[derive(Debug)]
struct Latest {
    wished: Option<Algorithm>,
    call: Call,
    selection: Selection,
    prepared: Arc<Prepared>,
}

impl Engine {
    pub(crate) fn new(transport: Transport, topology: Topology, timeout: Duration) -> Self {
        let executor = Executor::new(&transport.registry());
        Self {
            transport,
            topology,
            timeout,
            executor,
            plans: HashMap::new(),
            latest: None,
            sequence: 0,
            failure: None,
        }
    }

    /// Carries out a call by what a choice names. An error is the end: later calls fail with
    /// [`Error::Aborted`].
    pub(crate) fn run(&mut self, choice: Choice, call: &Call, buffer: &mut [u8]) -> Result<Ran> {
        self.check_alive()?;
        let ran = match (choice, &mut self.transport) {
            #[cfg(feature = "mpi")]
            (Choice::Mpi, Transport::Mpi(mpi)) => {
                MpiOwn { mpi, ranks: self.topology.ranks() }.run(call, buffer)
            }
            _ => Planned { engine: self, wished: choice.algorithm() }.run(call, buffer),
        };
        match &ran {
            Ok(_) | Err(Error::Unsupported(_)) => {}
            Err(error) => drop(self.fail(&error.to_string())),
        }
        ran
    }

    /// Says that this rank cannot go on; what later calls fail with.
    pub(crate) fn fail(&mut self, cause: &str) -> Error {
        if self.failure.is_none() {
            self.failure = Some(cause.to_owned());
            self.transport.fail(cause);
        }
        let (rank, cause) = (self.transport.rank(), self.failure.clone().unwrap_or_default());
        Error::Aborted { rank, by: rank, cause }
    }

    /// # Errors
    /// [`Error::Aborted`] after a failure.
    pub(crate) fn check_alive(&self) -> Result<()> {
        let rank = self.transport.rank();
        match &self.failure {
            None => Ok(()),
            Some(cause) => Err(Error::Aborted { rank, by: rank, cause: cause.clone() }),
        }
    }

    /// This rank's plan, if the algorithm offers the operation.
    fn plan(&mut self, algorithm: Algorithm, operation: Operation) -> Option<Arc<Prepared>> {
        let (rank, topology) = (self.transport.rank(), &self.topology);
        let make = || {
            let plan = algorithm.plan(operation, topology, rank)?;
            Some(Arc::new(Prepared::new(plan, operation, rank, topology.ranks())))
        };
        self.plans.entry((algorithm, operation)).or_insert_with(make).clone()
    }

    /// What carries out a call, and this rank's plan: by the algorithm that is wished for, where it offers the
    /// operation.
    fn choose(&mut self, wished: Option<Algorithm>, call: &Call) -> (Selection, &Prepared) {
        let same = |latest: &Latest| (latest.wished, latest.call) == (wished, *call);
        if !self.latest.as_ref().is_some_and(same) {
            let (selection, prepared) = self.look_up(wished, call);
            self.latest = Some(Latest { wished, call: *call, selection, prepared });
        }
        let Latest { selection, prepared, .. } = self.latest.as_ref().expect("it is set now");
        (*selection, prepared)
    }

    fn look_up(&mut self, wished: Option<Algorithm>, call: &Call) -> (Selection, Arc<Prepared>) {
        if let Some(algorithm) = wished
            && let Some(plan) = self.plan(algorithm, call.operation)
        {
            return (Selection { algorithm, why: select::ASKED_FOR }, plan);
        }
        let selection = select(call.operation, &self.topology, call.size_bytes());
        let plan = self.plan(selection.algorithm, call.operation);
        (selection, plan.expect("what is selected offers the operation"))
    }

    /// What carries out a call.
    pub(crate) fn selection(&mut self, wished: Option<Algorithm>, call: &Call) -> Selection {
        self.choose(wished, call).0
    }
}

/// Our own collectives: schedules, carried out over a transport.
#[derive(Debug)]
pub(crate) struct Planned<'a> {
    pub(crate) engine: &'a mut Engine,
    pub(crate) wished: Option<Algorithm>,
}

impl Collective for Planned<'_> {
    fn run(&mut self, call: &Call, buffer: &mut [u8]) -> Result<Ran> {
        check_size(call, buffer);
        let Selection { algorithm, why } = self.engine.choose(self.wished, call).0;
        let Engine { transport, topology, timeout, executor, latest, sequence, .. } = &mut *self.engine;
        let prepared = &latest.as_ref().expect("it was chosen just now").prepared;
        let task = Task { call, algorithm, prepared, topology, sequence: *sequence, timeout: *timeout };
        *sequence += 1;
        executor.run(&task, buffer, transport)?;
        Ok(Ran { algorithm: algorithm.name(), why })
    }
}

/// MPI's own all-reduce, as a baseline.
///
/// It waits as MPI waits, without a deadline of ours, and adds in an order of its own.
#[cfg(feature = "mpi")]
#[derive(Debug)]
pub(crate) struct MpiOwn<'a> {
    pub(crate) mpi: &'a mut crate::transport::mpi::Mpi,
    pub(crate) ranks: usize,
}

#[cfg(feature = "mpi")]
impl Collective for MpiOwn<'_> {
    fn run(&mut self, call: &Call, buffer: &mut [u8]) -> Result<Ran> {
        use crate::ReduceOp;
        check_size(call, buffer);
        let (Operation::AllReduce, Some(op)) = (call.operation, call.op) else {
            return Err(Error::Unsupported(format!(
                "of MPI's own collectives only all-reduce is here, not {}",
                call.operation
            )));
        };
        self.mpi.vendor_all_reduce(buffer, call.dtype, op)?;
        if op == ReduceOp::Mean {
            crate::reduce::divide(call.dtype, buffer, self.ranks);
        }
        Ok(Ran { algorithm: "mpi", why: select::ASKED_FOR })
    }
}

fn check_size(call: &Call, buffer: &[u8]) {
    assert_eq!(buffer.len(), call.size_bytes(), "the buffer of {} {}", call.count, call.dtype);
}
