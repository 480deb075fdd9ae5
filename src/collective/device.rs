//! Collectives on arrays in GPU memory.
//!
//! The [decision](../../docs/decisions/0007-gpu-calls.md) lists the possible differences between the calls of ranks and the checks that detect
//! them.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaStream};
use unisono_collectives::execution::StagedPlan;
use unisono_collectives::{Algorithm, Chunks};

use super::reduction::check_defined;
use super::{Engine, Options};
use crate::call::{Call, Ran};
use crate::codes::Codes;
use crate::device::{Gpu, Pipeline, Ranks, wait_behind_nccl};
use crate::error::{Error, Result};
use crate::executor::Task;
use crate::gpu::{Span, cuda, moment};
use crate::kernels::ReduceOp;
use crate::method::{Method, Vendor};
use crate::select::Choice;
use crate::transport::{Deadlines, Header, gather_padded};

mod choose;

/// The largest number of kinds of call that are recorded as agreed on. All ranks clear the record at the same call.
const MAX_KINDS: usize = 4096;

#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceCall<'a> {
    pub(crate) call: &'a Call,
    pub(crate) options: &'a Options,
    /// The call is ordered after the work now on this stream and before later work.
    pub(crate) stream: &'a Arc<CudaStream>,
}

impl Engine {
    /// Runs `work` with this rank's GPU, which all ranks set up together on first use, with the timeout of the call.
    pub(crate) fn with_gpu<R>(
        &mut self,
        context: &Arc<CudaContext>,
        timeout: Option<Duration>,
        work: impl FnOnce(&mut Self, &mut Gpu) -> Result<R>,
    ) -> Result<R> {
        // Collectives that NCCL has started would wait for a rank that has failed.
        self.begin()?;
        let mut gpu = match self.gpu.take() {
            Some(gpu) => gpu,
            None => {
                let made = self.set_up_gpu(context, timeout);
                Box::new(self.settle(made)?)
            }
        };
        let bound = check_context(&gpu.context, context)
            .and_then(|()| context.bind_to_thread().map_err(cuda("the GPU's context")));
        self.is_in_call = true;
        let done = bound.and_then(|()| work(self, &mut gpu));
        self.is_in_call = false;
        // Before `settle`, which aborts NCCL after a failure.
        self.gpu = Some(gpu);
        self.settle(done)
    }

    fn set_up_gpu(&mut self, context: &Arc<CudaContext>, timeout: Option<Duration>) -> Result<Gpu> {
        let (rank, topology, registry) =
            (self.transport.rank(), self.topology.clone(), self.transport.registry());
        let usual = self.limits.usual;
        let patience =
            (Deadlines { timeout: timeout.unwrap_or(usual.timeout), ..usual }, self.status.clone());
        let options = Options { timeout, ..Options::default() };
        let gather = &mut |own: &[u8]| gather_padded(own, |own| self.gather(own, &options));
        Gpu::new(context, Ranks { rank, topology: &topology, registry, patience, gather })
    }

    /// Carries out a call on an array on this rank's GPU.
    ///
    /// Returns when the host's part is done; the GPU may still be working.
    pub(crate) fn run_on_gpu(
        &mut self,
        gpu: &mut Gpu,
        choice: &Choice,
        requested: DeviceCall<'_>,
        span: &mut Span<'_>,
    ) -> Result<Ran> {
        let call = requested.call;
        check_on_gpu(call)?;
        assert_eq!(span.size_bytes(), call.size_bytes(), "the buffer of {} {}", call.count, call.dtype);
        check_context(span.context(), requested.stream.context())?;
        let (method, why) = match choose::choose(choice, call, &gpu.inside, &self.topology)? {
            Some(chosen) => chosen,
            // The method that the host would select for this array in host memory.
            None => {
                let Ran { method, why, .. } = self.selection(choice, call, None);
                (method, why)
            }
        };
        if requested.options.parts.is_some() && method != Method::Vendor(Vendor::Nccl) {
            return Err(Error::Unsupported(format!(
                "counts of ranks on GPUs need NCCL on one node, and this {} is by {method}",
                call.operation
            )));
        }
        let deadlines = &self.deadlines(requested.options);
        if let Some(nccl) = &mut gpu.nccl {
            nccl.set_deadlines(*deadlines);
        }
        let done = match method {
            // With one rank, the array is its own result.
            _ if self.topology.ranks() == 1 => Ok(()),
            Method::Vendor(_) => self.by_nccl(gpu, requested, deadlines, span),
            Method::Algorithm(algorithm) | Method::InNodes(algorithm, _) => {
                self.in_segments(gpu, (algorithm, method), requested, deadlines, span)
            }
        };
        // The host's part is complete here, possibly before the GPU's.
        if self.topology.ranks() > 1 {
            self.status.end(done.is_ok(), call.size_bytes());
        }
        done?;
        Ok(Ran { method, why, link: method.link(self.transport.name()) })
    }

    fn by_nccl(
        &mut self,
        gpu: &mut Gpu,
        requested: DeviceCall<'_>,
        deadlines: &Deadlines,
        span: &mut Span<'_>,
    ) -> Result<()> {
        let DeviceCall { call, options, stream } = requested;
        let method = Method::Vendor(Vendor::Nccl);
        let header = &self.begin_on_gpu(call, method, 1, options);
        self.agree_on_gpu(gpu, (header, method), deadlines)?;
        let parts = call.parts(self.topology.ranks(), options.parts.as_ref());
        let parts: Vec<_> =
            (0..self.topology.ranks()).map(|rank| parts.elements(Chunks::one(rank))).collect();
        gpu.nccl().run(span, (call.operation, call.op, call.dtype), &parts, stream)
    }

    fn in_segments(
        &mut self,
        gpu: &mut Gpu,
        (algorithm, method): (Algorithm, Method),
        requested: DeviceCall<'_>,
        deadlines: &Deadlines,
        span: &mut Span<'_>,
    ) -> Result<()> {
        let DeviceCall { call, options, stream } = requested;
        let vendor = method.in_nodes();
        let compiled =
            self.plan(algorithm, call.operation, false).expect("the selected algorithm offers the operation");
        let kind = (algorithm, call.operation, vendor.is_some());
        let staged = Arc::clone(gpu.plans.entry(kind).or_insert_with(|| {
            Arc::new(match vendor {
                Some(_) => StagedPlan::with_vendor(&compiled),
                None => StagedPlan::on_host(Arc::clone(&compiled)),
            })
        }));
        // The host memory of a rank: with a vendor, at most a shard.
        let shards = match (algorithm.descriptor().levels, vendor) {
            (Some(levels), Some(_)) => (levels.shards)(&self.topology),
            _ => 1,
        };
        let segments = StagedPlan::segments(call.size_bytes() / shards);
        // Over several nodes the vendor sums, and the host divides.
        let vendor_op = match call.op {
            Some(ReduceOp::Mean) if self.topology.nodes() > 1 => Some(ReduceOp::Sum),
            op => op,
        };
        let header = &self.begin_on_gpu(call, method, segments as u64, options);
        if vendor.is_some() {
            self.agree_on_gpu(gpu, (header, method), deadlines)?;
        }
        let Self { executor, transport, .. } = self;
        let task = Task { header, method, deadlines };
        Pipeline {
            gpu,
            staged: &staged,
            call,
            task,
            vendor_op,
            bound: None,
            segments,
            executor,
            transport,
            stream,
        }
        .run(span)
    }

    /// Checks that all ranks make the same call, which NCCL does not. The ranks exchange messages at the first call of its kind. For later
    /// ones the status board suffices, since it shows the calls of the other ranks.
    fn agree_on_gpu(
        &mut self,
        gpu: &mut Gpu,
        (header, method): (&Header, Method),
        deadlines: &Deadlines,
    ) -> Result<()> {
        let Self { transport, topology, status, calls, .. } = self;
        let task = Task { header, method, deadlines };
        task.announce(calls.history(), transport)?;
        if gpu.agreed.len() == MAX_KINDS {
            gpu.agreed.clear();
        }
        let is_new = gpu.agreed.insert(header.kind());
        let node = topology.node(topology.node_of(status.rank()));
        let are_all_on_the_board = node.members().iter().all(|&rank| status.position_of(rank).is_some());
        gpu.last = Some((*header, method));
        if is_new || !are_all_on_the_board { task.agree(transport) } else { Ok(()) }
    }

    /// Waits until the work now queued on a stream is done.
    pub(crate) fn synchronize(&self, gpu: &Gpu, stream: &Arc<CudaStream>, options: &Options) -> Result<()> {
        let reached = moment(stream)?;
        let is_over = || reached.try_is_complete().map_err(cuda("work on the GPU"));
        let (before, deadlines) = ((gpu.nccl.as_ref(), gpu.last.as_ref()), &self.deadlines(options));
        wait_behind_nccl(is_over, "the work queued on the GPU", before, deadlines, &self.transport)
    }

    /// Returns the header of the next call by this method, which uses `numbers` sequence numbers.
    fn begin_on_gpu(&mut self, call: &Call, method: Method, numbers: u64, options: &Options) -> Header {
        let label = options.label_of(call.operation);
        let header = self.calls.next(numbers, call.count, Codes::new(call, method), label);
        // The end is recorded when the host's part is done.
        let _ = header.note(&self.status, call.size_bytes());
        header
    }
}

/// Checks that a call uses the context that this rank announced to the other ranks.
fn check_context(announced: &CudaContext, given: &CudaContext) -> Result<()> {
    if announced == given {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "this rank uses a context of GPU {}, but this call's array or stream is in another one, on GPU {}; a rank uses a single context",
        announced.ordinal(),
        given.ordinal()
    )))
}

/// # Errors
/// [`Error::Unsupported`] for a reduction that is not defined for the elements, for a custom reduction, and for untyped elements of
/// several bytes.
fn check_on_gpu(call: &Call) -> Result<()> {
    match call.op {
        Some(op @ ReduceOp::Custom(_)) => Err(Error::Unsupported(format!(
            "`{op}` is a custom reduction, which runs on the host, but the array is in GPU memory; copy it to host memory"
        ))),
        _ if call.width != 1 => Err(Error::Unsupported(format!(
            "elements of `{}` bytes are supported in host memory only, but the array is in GPU memory",
            call.width
        ))),
        Some(op) => check_defined(op, call),
        None => Ok(()),
    }
}
