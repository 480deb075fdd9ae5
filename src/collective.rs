//! The common interface of planned collectives and of a vendor's own, by which benchmarks and tests compare them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use unisono_collectives::execution::CompiledPlan;
use unisono_collectives::model::Machine;
use unisono_collectives::partition::Partition;
use unisono_collectives::{Algorithm, Chunks, Operation, Rank, Topology, clock};

use crate::call::{Call, Memory, Ran};
use crate::codes::Codes;
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::executor::{Bound, Executor, Task};
use crate::kernels;
use crate::method::{Method, Vendor};
use crate::record::{COUNTS_OF_PAIRS, FIRST_OF_SETUP};
use crate::select::{Choice, Selection, Selector};
use crate::status::StatusBoard;
use crate::transport::{Calls, Deadlines, Fabric, Messages};
use crate::tuning::Tuning;

#[cfg(feature = "nccl")]
mod device;
mod ending;
mod recent;
mod reduction;
mod vendor;

#[cfg(feature = "nccl")]
pub(crate) use device::DeviceCall;
use recent::{Kind, Recent, RecentCalls};
use reduction::needs_order;

/// Carries out collective calls for one rank.
///
/// All ranks of the world make the same calls in the same order. [`crate::Communicator::collective`] returns one.
pub trait Collective {
    /// Carries out a call in place.
    ///
    /// `buffer` holds `call.count` elements of `call.dtype`, aligned for that type; [`Operation`] defines its contents
    /// afterwards.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] refuses the call if this implementation does not support it. Any other error [is
    /// fatal](crate::Error::is_fatal).
    ///
    /// # Panics
    /// If the buffer has a different size; if the [parts of ranks](crate::CallBuilder::counts) have a different sum; if [the operation
    /// reduces](Operation::reduces) and the call has no reduction, or the reverse.
    fn run(&mut self, call: &Call, buffer: &mut [u8]) -> Result<Ran>;
}

/// Executes calls: the transport, the executor, and a cache of plans.
#[derive(Debug)]
pub(crate) struct Engine {
    /// This rank's GPU, after the first call on one. Dropped first: other ranks share the memory that it pins.
    #[cfg(feature = "nccl")]
    pub(crate) gpu: Option<Box<crate::device::Gpu>>,
    pub(crate) transport: Fabric,
    /// Point-to-point messages, which use separate links.
    pub(crate) messages: Messages,
    pub(crate) topology: Topology,
    pub(crate) status: StatusBoard,
    pub(crate) limits: Limits,
    pub(crate) executor: Executor,
    /// Compiled plans by algorithm, operation, and whether the plan keeps the order of ranks; `None` if the algorithm does not offer it.
    /// Programs repeat few different calls.
    plans: HashMap<(Algorithm, Operation, bool), Option<Arc<CompiledPlan>>>,
    /// Recent kinds of call and their plans; most calls repeat one of them.
    recent: RecentCalls,
    pub(crate) selector: Selector,
    pub(crate) calls: Calls,
    /// The reason why this communicator is lost: the rank that failed first, which may be this one, and its cause.
    failure: Option<(Rank, String)>,
    /// Whether a call is running. It remains set if the program's code, a reduction or a callback, panics in the call. The other ranks
    /// wait for this one then, even if the program catches the panic.
    is_in_call: bool,
}

/// The longest time that calls may wait for other ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Limits {
    pub(crate) usual: Deadlines,
    /// Applies until the ranks have completed the user's first call, since some may still be starting.
    pub(crate) first: Deadlines,
}

impl Limits {
    #[inline]
    pub(crate) fn of(&self, sequence: u64) -> &Deadlines {
        if (1..FIRST_OF_SETUP).contains(&sequence) { &self.usual } else { &self.first }
    }
}

/// The label, timeout and parts of a collective call, and the tag of a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// The hash of the label; 0 without one.
    pub(crate) label: u64,
    /// The hash of the label and the sizes of the parts; 0 without parts.
    pub(crate) label_of_parts: u64,
    /// Overrides the timeout of the communicator.
    pub(crate) timeout: Option<Duration>,
    /// The parts of ranks; without it, they differ by at most one element.
    pub(crate) parts: Option<Partition>,
    pub(crate) tag: u32,
}

impl Options {
    /// Returns the hash of the label that ranks compare in a call, which includes the parts if the operation has parts.
    #[inline]
    pub(crate) fn label_of(&self, operation: Operation) -> u64 {
        if self.parts.is_some() && operation.has_parts() { self.label_of_parts } else { self.label }
    }

    /// Returns the deadlines of the call: the `usual` ones of the communicator, unless the call has its own timeout. They are borrowed,
    /// since a short call would wait until the stores of a copy complete.
    #[inline]
    pub(crate) fn deadlines<'a>(&self, usual: &'a Deadlines) -> Cow<'a, Deadlines> {
        match self.timeout {
            None => Cow::Borrowed(usual),
            Some(timeout) => Cow::Owned(Deadlines { timeout, ..*usual }),
        }
    }
}

impl Engine {
    pub(crate) fn new(mut transport: Fabric, topology: Topology, limits: Limits) -> Self {
        let executor = Executor::new(transport.registry());
        let selector = Selector::new(machines(&transport, &Tuning::default(), transport.node_cores()));
        Self {
            status: transport.status().clone(),
            messages: transport.messages(),
            transport,
            topology,
            limits,
            executor,
            plans: HashMap::new(),
            recent: RecentCalls::default(),
            selector,
            calls: Calls::default(),
            failure: None,
            is_in_call: false,
            #[cfg(feature = "nccl")]
            gpu: None,
        }
    }

    /// Sets the constants of the cost model, for nodes with this many cores. All ranks call it at the same position among their calls.
    pub(crate) fn set_tuning(&mut self, tuning: &Tuning, cores: usize) {
        self.selector = Selector::new(machines(&self.transport, tuning, cores));
        self.recent = RecentCalls::default();
    }

    /// Returns the predicted time of an algorithm for a call; `None` with declared nodes, to which the constants do not apply.
    pub(crate) fn predicted_us(&self, algorithm: Algorithm, call: &Call, memory: Memory) -> Option<f64> {
        let topology = &self.topology;
        if topology != self.transport.topology() {
            return None;
        }
        let (machine, size_bytes) = (self.selector.machine(memory as usize), call.size_bytes());
        clock::predict(algorithm, call.operation, topology, machine, size_bytes, call.element_bytes())
            .map(|predicted| predicted.time_us)
            .ok()
    }

    /// Carries out a call by the method that a choice selects. After a fatal error, later calls fail with [`Error::Aborted`].
    pub(crate) fn run(
        &mut self,
        choice: &Choice,
        options: &Options,
        call: &Call,
        buffer: &mut [u8],
    ) -> Result<Ran> {
        self.check_reduction(choice, call)?;
        self.begin()?;
        let planned = match choice.method() {
            Some(Method::Vendor(Vendor::Mpi)) if self.transport.has_mpi() => {
                let ran = self.run_by_vendor(options, call, buffer);
                return self.settle(ran);
            }
            Some(method) if method.vendor() == Some(Vendor::Nccl) => Err(Error::Unsupported(
                "NCCL reduces arrays in GPU memory, and this array is in host memory; choose another algorithm"
                    .to_owned(),
            )),
            _ => self.run_planned(choice, options, call, buffer),
        };
        match planned {
            Ok(place) => Ok(self.recent.kinds[place].ran),
            Err(error) => self.settle(Err(error)),
        }
    }

    /// Carries out a call by schedules over the transport. Returns the index of the call in `recent`.
    ///
    /// (An index rather than a value of several words: loading words that were just stored would stall behind the message that was
    /// stored for another core before.)
    pub(crate) fn run_planned(
        &mut self,
        choice: &Choice,
        options: &Options,
        call: &Call,
        buffer: &mut [u8],
    ) -> Result<usize> {
        check_size(call, buffer);
        // A barrier has no parts, even if the options give parts for other calls.
        let parts = options.parts.as_ref().filter(|_| call.operation.has_parts());
        let place = self.choose(choice, call, parts);
        self.check_vendor(self.recent.kinds[place].ran.method, call)?;
        let Self { transport, status, limits, executor, recent, calls, is_in_call, .. } = self;
        let Recent { ran, codes, bound, .. } = &recent.kinds[place];
        let header = calls.next(1, call.count, *codes, options.label_of(call.operation));
        let deadlines = &options.deadlines(limits.of(header.sequence()));
        let recording = header.note(status, buffer.len());
        let task = Task { header: &header, method: ran.method, deadlines };
        *is_in_call = true;
        let done = executor.run(bound, &task, buffer, transport);
        *is_in_call = false;
        recording.end(done.is_ok());
        done.map(|()| place)
    }

    /// Sends part `j` of `sent` to each rank `j`, and stores the part from each rank `i` as part `i` of `received`. `call` has
    /// 0 elements, since ranks do not know each other's counts. A rank that receives an unexpected number of bytes reports an error.
    pub(crate) fn all_to_all_v(
        &mut self,
        choice: &Choice,
        options: &Options,
        call: &Call,
        (sent, sent_parts): (&[u8], &Partition),
        (received, received_parts): (&mut [u8], &Partition),
    ) -> Result<Ran> {
        self.begin()?;
        let (selection, compiled) = self.look_up(choice, call);
        let method = Method::Algorithm(selection.algorithm);
        let bound = Bound::between(&compiled, call, method, (sent_parts, received_parts));
        let own = Chunks::one(self.transport.rank());
        let [from, to] = [sent_parts, received_parts].map(|parts| call.bytes_of(parts.elements(own)));
        kernels::copy(&mut received[to], &sent[from]);

        let Self { transport, status, limits, executor, calls, is_in_call, .. } = self;
        let header = calls.next(1, COUNTS_OF_PAIRS as usize, Codes::new(call, method), options.label);
        let deadlines = &options.deadlines(limits.of(header.sequence()));
        let recording = header.note(status, sent.len() + received.len());
        let task = Task { header: &header, method, deadlines };
        *is_in_call = true;
        let done = executor.run_any(&bound, &task, (Some(sent), received), transport);
        *is_in_call = false;
        recording.end(done.is_ok());
        let ran = Ran { method, why: selection.why, link: method.link(transport.name()) };
        self.settle(done.map(|()| ran))
    }

    /// All-gathers the same number of elements from each rank, in the order of ranks, by a fixed algorithm. The surrounding call settles
    /// the result.
    pub(crate) fn gather<T: Element>(&mut self, own: &[T], options: &Options) -> Result<Vec<T>> {
        let (rank, ranks) = (self.transport.rank(), self.topology.ranks());
        let mut all = vec![T::zeroed(); own.len() * ranks];
        all[rank * own.len()..][..own.len()].copy_from_slice(own);
        let call = Call::new(Operation::AllGather, None, T::DTYPE, all.len());
        let bytes = bytemuck::cast_slice_mut(&mut all);
        self.run_planned(&Algorithm::Butterfly.into(), options, &call, bytes)?;
        Ok(all)
    }

    pub(crate) fn deadlines(&self, options: &Options) -> Deadlines {
        options.deadlines(self.limits.of(self.calls.sequence)).into_owned()
    }

    /// Returns the compiled plan of this rank, if the algorithm offers the operation. With `in_order`, the plan combines operands in the
    /// order of ranks.
    pub(crate) fn plan(
        &mut self,
        algorithm: Algorithm,
        operation: Operation,
        in_order: bool,
    ) -> Option<Arc<CompiledPlan>> {
        let (rank, topology) = (self.transport.rank(), &self.topology);
        let compile = if in_order { CompiledPlan::in_rank_order } else { CompiledPlan::new };
        let make = || compile(algorithm, operation, topology, rank).map(Arc::new);
        self.plans.entry((algorithm, operation, in_order)).or_insert_with(make).clone()
    }

    /// Finds the method and plan of a call: the chosen algorithm if it offers the operation, otherwise a selected one.
    ///
    /// Returns the index of the call in `recent`.
    #[inline]
    fn choose(&mut self, choice: &Choice, call: &Call, parts: Option<&Partition>) -> usize {
        match self.recent.latest(choice, call, parts) {
            Some(place) => place,
            None => self.choose_another(choice, call, parts),
        }
    }

    #[inline(never)]
    fn choose_another(&mut self, choice: &Choice, call: &Call, parts: Option<&Partition>) -> usize {
        if let Some(place) = self.recent.find(choice, call, parts) {
            return place;
        }
        let (selection, compiled) = self.look_up(choice, call);
        let is_of = |method: &Method| method.algorithm() == Some(selection.algorithm);
        let method = choice.method().filter(is_of).unwrap_or(Method::Algorithm(selection.algorithm));
        let ran = Ran { method, why: selection.why, link: method.link(self.transport.name()) };
        let bound = Bound::compile(&compiled, call, method, parts, &self.transport);
        self.recent.insert(Kind::of(choice, call, parts), ran, bound)
    }

    fn look_up(&mut self, choice: &Choice, call: &Call) -> (Selection, Arc<CompiledPlan>) {
        let in_order = needs_order(call);
        if let Some((algorithm, why)) = choice.requested(call.size_bytes())
            && let Some(plan) = self.plan(algorithm, call.operation, in_order)
        {
            return (Selection { algorithm, why }, plan);
        }
        let keep = in_order.then(|| self.in_order(call.operation));
        let Self { selector, topology, .. } = self;
        let sizes = (call.size_bytes(), call.element_bytes());
        let selection = selector.select(keep.as_deref(), call.operation, topology, sizes);
        let plan = self.plan(selection.algorithm, call.operation, in_order);
        (selection, plan.expect("the selected algorithm offers the operation"))
    }

    pub(crate) fn selection(&mut self, choice: &Choice, call: &Call, parts: Option<&Partition>) -> Ran {
        let parts = parts.filter(|_| call.operation.has_parts());
        let place = self.choose(choice, call, parts);
        self.recent.kinds[place].ran
    }
}

/// Returns the machines of the cost model: one per kind of memory, or a single one if they are equal.
fn machines(transport: &Fabric, tuning: &Tuning, cores: usize) -> Vec<Machine> {
    let mut machines = Memory::HOST.map(|memory| tuning.machine(transport.name(), memory, cores)).to_vec();
    machines.dedup();
    machines
}

fn check_size(call: &Call, buffer: &[u8]) {
    assert_eq!(buffer.len(), call.size_bytes(), "the buffer of {} {}", call.count, call.dtype);
}
