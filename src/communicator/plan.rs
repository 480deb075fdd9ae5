//! Persistent collectives, which are planned once and carried out many times.

use std::fmt;
use std::ops::{Deref, DerefMut};

use bytemuck::{cast_slice, cast_slice_mut};
use unisono_collectives::{Operation, Rank};

use super::Communicator;
use super::per_call::PerCall;
use crate::call::Call;
use crate::codes::{Codes, OF_BARRIER};
use crate::dtype::{Buffer, Element};
use crate::error::{Error, Result};
use crate::kernels::ReduceOp;
use crate::method::Method;
use crate::record::{described, elements};
use crate::request::Request;
use crate::status::StatusBoard;
use crate::transport::gather;

mod slots;

use slots::Slots;

/// A persistent collective with its buffer, planned by [`Communicator::plan`] and carried out many times (`MPI_Allreduce_init` and
/// similar, MPI 4.0, §6.13).
///
/// It dereferences to the buffer, except between [`start`](Self::start) and [`wait`](Self::wait).
pub struct Planned<B> {
    operation: Operation,
    op: Option<ReduceOp>,
    per_call: PerCall,
    /// The status board of the communicator that planned it.
    status: StatusBoard,
    /// The slots of a short all-reduce in shared memory. Other calls run as if they were not planned.
    slots: Option<Slots>,
    state: State<B>,
}

enum State<B> {
    Idle(B),
    /// Started, in slots.
    Started(B),
    InFlight(Request<B>),
    /// The buffer was lost with a call that failed.
    Failed,
}

/// Returns the codes of a planned call. Its algorithm is not agreed on.
fn codes(call: &Call) -> Codes {
    Codes::new(call, Method::Algorithm(OF_BARRIER))
}

fn describe(codes: &Codes, count: u64) -> String {
    described(codes.operation(), &elements(count, &codes.dtype()), codes.op(), codes.root())
}

impl Communicator {
    /// Plans a collective on a buffer, which the plan owns. All ranks call it, with the same operation and number of elements, and then
    /// start and wait for the plan equally often.
    ///
    /// The options of a [`Communicator::call`] apply to all calls of the plan. Several plans may be in flight at once, with other
    /// calls. Short all-reduces among ranks that share memory (at most 56 bytes on at most 8 ranks, unless an algorithm was chosen)
    /// may be started in different orders on different ranks. They exchange their values in memory of the plan, without messages,
    /// and reduce them in the order of ranks. Half-precision elements are rounded after every addition. Any other plan runs as the
    /// non-blocking collective does.
    ///
    /// ```
    /// use unisono::{Operation, ReduceOp};
    ///
    /// let ended = unisono::threads(2, |mut comm| -> unisono::Result<f32> {
    ///     let mut loss = comm.plan(Operation::AllReduce, Some(ReduceOp::Mean), vec![0.0_f32])?;
    ///     for step in 0..3 {
    ///         loss[0] = (step + comm.rank()) as f32;
    ///         loss.start(&mut comm)?;
    ///         // Meanwhile this thread computes.
    ///         loss.wait(&mut comm)?;
    ///     }
    ///     Ok(loss[0])
    /// });
    /// assert!(ended.into_iter().all(|loss| loss.unwrap() == 2.5));
    /// ```
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch) if ranks plan different calls. Otherwise as [`Communicator::all_reduce`].
    ///
    /// # Panics
    /// As the collective, and if `op` is missing or not needed: only [operations that reduce](Operation::reduces) have a reduction.
    pub fn plan<T: Element, B>(
        &mut self,
        operation: Operation,
        op: Option<ReduceOp>,
        buffer: B,
    ) -> Result<Planned<B>>
    where
        B: Deref<Target = [T]>,
    {
        let call = self.checked::<T>(operation, op, buffer.len());
        let choice = self.choice_of_call()?.on_host(operation).clone();
        self.engine_owner.engine().check_reduction(&choice, &call)?;
        self.agree_on_plan(&call)?;
        let ranks = self.ranks();
        // `UNISONO_NODES` may declare several nodes on one machine.
        let is_shared =
            self.topology.nodes() == 1 && self.engine_owner.engine().transport.is_shared_by(ranks);
        let is_chosen = choice.method().is_some() || choice.requested(call.size_bytes()).is_some();
        let has_slots = is_shared && !is_chosen && Slots::fit(&call, ranks);
        let slots = has_slots.then(|| Slots::new(self, &call)).transpose()?;
        let (per_call, status) = (self.per_call.clone(), self.status.clone());
        Ok(Planned { operation, op, per_call, status, slots, state: State::Idle(buffer) })
    }

    fn agree_on_plan(&mut self, call: &Call) -> Result<()> {
        let label = self.per_call.options.label_of(call.operation);
        // The hashes are compared, since the status board forgets the names of old labels.
        let name = || self.status.label(label).unwrap_or_else(|| format!("{label:016x}"));
        let own = ((codes(call).bits(), call.count as u64, label), (label != 0).then(name));
        let all = gather(&mut self.as_bootstrap("plan"), &own)?;
        let (calls, labels): (Vec<_>, Vec<_>) = all.into_iter().unzip();
        let called = |rank: Rank| {
            let (codes, count, _) = calls[rank];
            let label = labels[rank].as_ref().map_or(String::new(), |name| format!(", label {name:?}"));
            format!("plan of {}{label}", describe(&Codes::of_bits(codes), count))
        };
        self.check_same("plan", &calls, called)
    }

    #[cold]
    fn lost_plan(&mut self) -> Result<()> {
        self.begin_here()?;
        Err(Error::Unsupported(
            "the buffer of the plan was lost with a call that failed; plan it again".into(),
        ))
    }
}

impl<B: Buffer> Planned<B> {
    /// Starts the call (`MPI_Start`), on the communicator that planned it. It does not wait for other ranks.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if another communicator has planned it. Otherwise as [`Communicator::all_reduce_async`].
    ///
    /// # Panics
    /// If it is started already.
    #[inline]
    pub fn start(&mut self, comm: &mut Communicator) -> Result<()> {
        self.check_planned_by(comm)?;
        let state = std::mem::replace(&mut self.state, State::Failed);
        let State::Idle(buffer) = state else {
            assert!(
                matches!(state, State::Failed),
                "a planned call is started before the one before is done"
            );
            return comm.lost_plan();
        };
        if let Some(slots) = &mut self.slots {
            if let Err(error) = comm.begin_here() {
                self.state = State::Idle(buffer);
                return Err(error);
            }
            slots.publish(cast_slice(&buffer));
            self.state = State::Started(buffer);
            return Ok(());
        }
        let mut call = comm.call();
        call.per_call = self.per_call.clone();
        self.state = State::InFlight(call.call_async(self.operation, self.op, buffer)?);
        Ok(())
    }

    /// Waits until the call that was started is done (`MPI_Wait`). The buffer then has the result.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if another communicator has planned it. Otherwise as the collective; the communicator and the buffer are then
    /// lost.
    ///
    /// # Panics
    /// If it is not started.
    #[inline]
    pub fn wait(&mut self, comm: &mut Communicator) -> Result<()> {
        self.check_planned_by(comm)?;
        match std::mem::replace(&mut self.state, State::Failed) {
            State::Started(mut buffer) => {
                let slots = self.slots.as_mut().expect("a plan that is started in slots has them");
                slots.reduce(comm, &self.per_call.options, cast_slice_mut(&mut buffer))?;
                self.state = State::Idle(buffer);
            }
            State::InFlight(request) => self.state = State::Idle(request.wait()?),
            State::Idle(_) => panic!("a planned call is waited for before it is started"),
            State::Failed => return comm.lost_plan(),
        }
        Ok(())
    }
}

impl<B> Planned<B> {
    /// A world that shrinks or grows is another communicator.
    #[inline]
    fn check_planned_by(&self, comm: &Communicator) -> Result<()> {
        if self.status.is(&comm.status) {
            return Ok(());
        }
        Err(Error::Unsupported("another communicator has planned this call; plan it again".into()))
    }

    /// Returns whether the call is started, and not waited for.
    pub fn is_started(&self) -> bool {
        matches!(self.state, State::Started(_) | State::InFlight(_))
    }

    /// Returns the buffer.
    ///
    /// # Panics
    /// If the call is started, or has failed.
    pub fn into_buffer(self) -> B {
        let State::Idle(buffer) = self.state else { panic!("{IN_FLIGHT}") };
        buffer
    }
}

const IN_FLIGHT: &str = "the buffer of a planned call is in flight, or was lost with a call that failed";

impl<B: Deref> Deref for Planned<B> {
    type Target = B::Target;

    /// # Panics
    /// As [`Planned::into_buffer`].
    fn deref(&self) -> &B::Target {
        let State::Idle(buffer) = &self.state else { panic!("{IN_FLIGHT}") };
        buffer
    }
}

impl<B: DerefMut> DerefMut for Planned<B> {
    fn deref_mut(&mut self) -> &mut B::Target {
        let State::Idle(buffer) = &mut self.state else { panic!("{IN_FLIGHT}") };
        buffer
    }
}

impl<B> fmt::Debug for Planned<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, op, slots, .. } = self;
        let mut text = f.debug_struct("Planned");
        text.field("operation", operation).field("op", op).field("has_slots", &slots.is_some());
        text.finish_non_exhaustive()
    }
}
