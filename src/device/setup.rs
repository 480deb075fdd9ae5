//! The GPU state of a rank, which all ranks set up together in their first call on device memory.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use unisono_collectives::execution::StagedPlan;
use unisono_collectives::{Algorithm, Operation, Rank, Topology};

use super::facts::{Facts, Inside};
use super::slot::Slot;
use crate::config;
use crate::error::Result;
use crate::gpu::{Current, cuda, zeros};
use crate::memory::Registry;
use crate::method::Method;
use crate::nccl::{self, UniqueId};
use crate::status::StatusBoard;
use crate::transport::{Deadlines, Header};

/// All-gathers the bytes of every rank, rank 0's first.
type Gather<'a> = dyn FnMut(&[u8]) -> Result<Vec<Vec<u8>>> + 'a;

/// The ranks, as the set-up needs them.
pub(crate) struct Ranks<'a> {
    pub(crate) rank: Rank,
    pub(crate) topology: &'a Topology,
    pub(crate) registry: Registry,
    /// The limits of NCCL's waits.
    pub(crate) patience: (Deadlines, StatusBoard),
    pub(crate) gather: &'a mut Gather<'a>,
}

/// A rank's GPU, with its streams, slots and NCCL communicator.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) context: Arc<CudaContext>,
    /// The stream of copies to the host.
    pub(super) down: Arc<CudaStream>,
    /// The stream of copies from the host.
    pub(super) up: Arc<CudaStream>,
    /// The stream of non-blocking calls.
    aside: Arc<CudaStream>,
    pub(super) slots: [Slot; StagedPlan::SLOTS],
    pub(crate) inside: Inside,
    /// NCCL's communicator of the ranks of this node.
    pub(crate) nccl: Option<nccl::Communicator>,
    /// Plans by algorithm, operation and whether a vendor takes part.
    pub(crate) plans: HashMap<(Algorithm, Operation, bool), Arc<StagedPlan>>,
    /// The kinds of call for which all ranks have agreed that NCCL carries them out: their codes and counts.
    pub(crate) agreed: HashSet<(u64, u64)>,
    /// The latest of the agreed calls.
    pub(crate) last: Option<(Header, Method)>,
    /// The array of barriers.
    pub(crate) token: Option<CudaSlice<u8>>,
    /// The context of the thread that drops all this. Dropped last.
    before: Option<Current>,
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.before = Some(Current::get());
    }
}

impl Gpu {
    /// Sets up the GPU. All ranks call it at the same point in their order of calls, each with the context of its arrays.
    pub(crate) fn new(context: &Arc<CudaContext>, mut ranks: Ranks<'_>) -> Result<Self> {
        context.bind_to_thread().map_err(cuda("the GPU's context"))?;
        let facts = facts_of_all(&mut ranks, context)?;
        let mut inside = Inside::of(&facts, ranks.topology);
        let mut nccl = None;
        if inside == Inside::Nccl {
            match communicator(&mut ranks, context)? {
                Ok(made) => nccl = made,
                Err(why) => inside = Inside::Host(why),
            }
        }
        if let (Inside::Host(why), 0) = (&inside, ranks.rank) {
            tracing::warn!("arrays on GPUs go through the host: {why}");
        }
        let slot = || Slot::new(context, ranks.registry);
        let stream = || context.new_stream().map_err(cuda("a stream"));
        Ok(Self {
            context: Arc::clone(context),
            down: stream()?,
            up: stream()?,
            aside: stream()?,
            slots: [slot()?, slot()?, slot()?, slot()?],
            inside,
            nccl,
            plans: HashMap::new(),
            agreed: HashSet::new(),
            last: None,
            token: None,
            before: None,
        })
    }

    /// Takes the array of barriers, which is allocated for the first barrier. Any stream may use it.
    pub(crate) fn take_token(&mut self) -> Result<CudaSlice<u8>> {
        if let Some(token) = self.token.take() {
            return Ok(token);
        }
        zeros(&self.context.default_stream(), 1).map_err(cuda("memory on the GPU"))
    }

    /// Returns the stream of non-blocking calls, and of calls on a per-thread default stream.
    pub(crate) fn aside(&self) -> Arc<CudaStream> {
        Arc::clone(&self.aside)
    }

    pub(crate) fn nccl(&mut self) -> &mut nccl::Communicator {
        self.nccl.as_mut().expect("plans with NCCL are only for ranks that have a communicator")
    }

    /// Describes how arrays move between GPUs.
    pub(crate) fn route(&self) -> String {
        match (&self.inside, nccl::library()) {
            (Inside::Nccl, Ok(library)) => format!("NCCL {} within nodes", library.version()),
            (Inside::Nccl, Err(error)) => error.to_string(),
            (Inside::Host(why), Err(error)) => format!("through the host, because {why}; here: {error}"),
            (Inside::Host(why), Ok(_)) => format!("through the host, because {why}"),
            (Inside::NoPairs, _) => "through the host: no node has two ranks".to_owned(),
        }
    }
}

/// Reports an asynchronous error of an NCCL collective.
///
/// # Errors
/// [`crate::Error::Nccl`] if a collective failed after it had been enqueued.
pub(super) fn check(nccl: Option<&nccl::Communicator>) -> Result<()> {
    nccl.map_or(Ok(()), |nccl| nccl.is_ready().map(drop))
}

fn facts_of_all(ranks: &mut Ranks<'_>, context: &CudaContext) -> Result<Vec<Facts>> {
    let uuid = context.uuid().map_err(cuda("the GPU's identity"))?;
    let nccl = match nccl::library() {
        Ok(library) => u64::from(library.version().code()),
        Err(error) => {
            tracing::info!("{error}");
            0
        }
    };
    let may_share = u64::from(config::nccl_may_share_a_gpu());
    let own = Facts { gpu: bytemuck::cast(uuid.bytes), nccl, may_share };
    let all = (ranks.gather)(bytemuck::bytes_of(&own))?;
    Ok(all.iter().map(|facts| bytemuck::pod_read_unaligned(facts)).collect())
}

/// Creates NCCL's communicator of this rank's node, or returns `None` for a rank alone on its node. The inner error is the reason
/// why NCCL refused, on any rank.
fn communicator(
    ranks: &mut Ranks<'_>,
    context: &Arc<CudaContext>,
) -> Result<Result<Option<nccl::Communicator>, String>> {
    let rank = ranks.rank;
    let node = ranks.topology.node(ranks.topology.node_of(rank));
    // NCCL listens for the other ranks of an id, so a leader alone on its node creates none.
    let is_leader = ranks.topology.local_rank(rank) == 0 && node.ranks() > 1;
    let library = nccl::library()?;
    let offered = is_leader.then(|| UniqueId::new(library)).transpose();
    // A leader without an id still takes part in the exchange.
    let own = offered.as_ref().ok().and_then(Option::as_ref).map_or(&[][..], |id| id.as_bytes());
    let all = (ranks.gather)(own)?;
    let begun = match (offered, <[u8; UniqueId::SIZE_BYTES]>::try_from(&*all[node.member(0)])) {
        _ if node.ranks() == 1 => Ok(None),
        (Err(error), _) => Err(error.to_string()),
        (Ok(_), Err(_)) => Err(format!("rank {} offered no id", node.member(0))),
        (Ok(_), Ok(id)) => {
            let (position, patience) = (ranks.topology.local_rank(rank), ranks.patience.clone());
            let id = UniqueId::from_bytes(id);
            let begun = nccl::Communicator::begin(library, node.ranks(), position, &id, context, patience);
            begun.map(Some).map_err(|error| error.to_string())
        }
    };
    // Exchanged first: in NCCL, the other ranks would wait for one that was refused.
    let mut made = match unless_refused(ranks, begun)? {
        Ok(begun) => begun,
        Err(why) => return Ok(Err(why)),
    };
    let ready = made.as_mut().map_or(Ok(()), nccl::Communicator::wait_until_ready);
    unless_refused(ranks, ready.map(|()| made).map_err(|error| error.to_string()))
}

/// Returns this rank's communicator, or the reason why NCCL refused, on any rank.
fn unless_refused(
    ranks: &mut Ranks<'_>,
    made: Result<Option<nccl::Communicator>, String>,
) -> Result<Result<Option<nccl::Communicator>, String>> {
    let why = made.as_ref().err().map_or("", String::as_str);
    let all = (ranks.gather)(why.as_bytes())?;
    let Some(refused) = all.iter().position(|why| !why.is_empty()) else { return Ok(made) };
    // Not finalised, for which it would wait for the refused rank.
    if let Ok(Some(mut made)) = made {
        made.abort();
    }
    Ok(Err(format!("NCCL refused on rank {refused}: {}", String::from_utf8_lossy(&all[refused]))))
}
