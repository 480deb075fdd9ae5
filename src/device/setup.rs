//! What a rank needs to reduce arrays on its GPU, made by all ranks together in their first such call.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaStream};
use unisono_collectives::{Algorithm, Rank, Topology};

use super::facts::{Facts, Inside};
use super::pieces::SLOTS;
use super::plan::Staged;
use super::slot::Slot;
use crate::config;
use crate::error::Result;
use crate::gpu::cuda;
use crate::memory::Registry;
use crate::nccl::{self, UniqueId};

/// What a rank knows of the others when they all set up their GPUs.
pub(crate) struct Ranks<'a> {
    pub(crate) rank: Rank,
    pub(crate) topology: &'a Topology,
    pub(crate) registry: Arc<Registry>,
    /// How long NCCL may take to begin.
    pub(crate) timeout: Duration,
    /// What every rank gives, as many words each, rank 0's first.
    pub(crate) gather: &'a mut dyn FnMut(&[u64]) -> Result<Vec<u64>>,
}

/// A rank's GPU, and its ways to those of others.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) context: Arc<CudaContext>,
    /// Copies to the host.
    pub(super) down: Arc<CudaStream>,
    /// Copies from the host.
    pub(super) up: Arc<CudaStream>,
    /// All that is in flight beside the caller's own streams.
    aside: Arc<CudaStream>,
    pub(super) slots: [Slot; SLOTS],
    pub(crate) inside: Inside,
    /// Among the ranks of this node.
    pub(crate) nccl: Option<nccl::Communicator>,
    /// By algorithm, and whether a vendor takes part.
    pub(crate) plans: HashMap<(Algorithm, bool), Arc<Staged>>,
}

impl Gpu {
    /// Called by all ranks at the same place in their order of calls, each with the context of its arrays.
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
        let slot = || Slot::new(context, &ranks.registry);
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
        })
    }

    /// The stream of what is in flight.
    pub(crate) fn aside(&self) -> Arc<CudaStream> {
        Arc::clone(&self.aside)
    }

    /// # Errors
    /// [`crate::Error::Nccl`] if something went wrong in a collective of NCCL's that had begun well.
    pub(crate) fn check_nccl(&self) -> Result<()> {
        check(self.nccl.as_ref())
    }

    /// # Panics
    /// If NCCL does not work in this node: who calls has seen that it does.
    pub(crate) fn nccl(&mut self) -> &mut nccl::Communicator {
        self.nccl.as_mut().expect("a plan with NCCL is for ranks that have it")
    }

    /// How arrays go from GPU to GPU, for a person.
    pub(crate) fn route(&self) -> String {
        match (&self.inside, nccl::library()) {
            (Inside::Nccl, Ok(library)) => format!("NCCL {} inside of nodes", library.version()),
            (Inside::Nccl, Err(error)) => error.to_string(),
            (Inside::Host(why), Err(error)) => format!("through the host, because {why}; here: {error}"),
            (Inside::Host(why), Ok(_)) => format!("through the host, because {why}"),
            (Inside::Nobody, _) => "through the host: no node has two ranks".to_owned(),
        }
    }
}

/// As [`Gpu::check_nccl`].
pub(super) fn check(nccl: Option<&nccl::Communicator>) -> Result<()> {
    nccl.map_or(Ok(()), |nccl| nccl.is_ready().map(drop))
}

/// What all ranks say of their GPUs.
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
    let words: [u64; 4] = bytemuck::cast(own);
    let all = (ranks.gather)(&words)?;
    Ok(bytemuck::cast_slice(&all).to_vec())
}

/// NCCL's communicator of this rank's node, `None` where it is alone; or why NCCL refuses, on whichever rank.
fn communicator(
    ranks: &mut Ranks<'_>,
    context: &Arc<CudaContext>,
) -> Result<Result<Option<nccl::Communicator>, String>> {
    let rank = ranks.rank;
    let node = ranks.topology.node(ranks.topology.node_of(rank));
    let is_leader = ranks.topology.local_rank(rank) == 0;
    let library = nccl::library()?;
    // Other ranks must hear of it if this one has no identity to offer, so it offers one that nobody uses.
    let offered = if is_leader { UniqueId::new(library) } else { Ok(UniqueId::from_bytes([0; 128])) };
    let words: [u64; 16] = bytemuck::cast(offered.as_ref().map_or([0; 128], |id| *id.as_bytes()));
    let all = (ranks.gather)(&words)?;
    let of_leader = &all[node.member(0) * words.len()..][..words.len()];
    let bytes: [u8; 128] = bytemuck::cast(<[u64; 16]>::try_from(of_leader).expect("one of many"));

    let made = if node.ranks() == 1 {
        Ok(None)
    } else if bytes == [0; 128] {
        Err(format!("rank {} could not begin an NCCL communicator", node.member(0)))
    } else {
        let position = ranks.topology.local_rank(rank);
        let id = UniqueId::from_bytes(bytes);
        let begun = nccl::Communicator::begin(library, node.ranks(), position, &id, context, ranks.timeout);
        let ready = begun.and_then(|mut comm| comm.wait_until_ready(ranks.timeout).map(|()| comm));
        ready.map(Some).map_err(|error| error.to_string())
    };
    let refused = (ranks.gather)(&[u64::from(made.is_err())])?;
    Ok(match (made, refused.iter().position(|&refused| refused != 0)) {
        (Err(why), _) => Err(format!("NCCL refused on rank {rank}: {why}")),
        (Ok(_), Some(other)) => Err(format!("NCCL refused on rank {other}")),
        (Ok(made), None) => Ok(made),
    })
}
