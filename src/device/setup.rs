//! What a rank needs to reduce arrays on its GPU, made by all ranks together in their first such call.

use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};
use unisono_collectives::{Algorithm, Operation};

use super::cuda;
use super::facts::{Facts, Inside};
use super::plan::Staged;
use super::slot::Slot;
use super::staged::SLOTS;
use crate::call::Call;
use crate::collective::Engine;
use crate::config;
use crate::dtype::Element;
use crate::error::Result;
use crate::nccl::{self, UniqueId};
use crate::select::Choice;

/// A rank's GPU, and its ways to those of others.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(super) context: Arc<CudaContext>,
    /// Copies to the host.
    pub(super) down: Arc<CudaStream>,
    /// Copies from the host.
    pub(super) up: Arc<CudaStream>,
    /// All that is in flight beside the caller's own streams.
    aside: Arc<CudaStream>,
    pub(super) slots: [Slot; SLOTS],
    pub(super) inside: Inside,
    /// Among the ranks of this node.
    pub(super) nccl: Option<nccl::Communicator>,
    /// By algorithm, and whether a vendor takes part.
    pub(super) plans: HashMap<(Algorithm, bool), Arc<Staged>>,
}

impl Gpu {
    /// Called by all ranks at the same place in their order of calls, each with the context of its arrays.
    pub(super) fn new(engine: &mut Engine, context: &Arc<CudaContext>) -> Result<Self> {
        context.bind_to_thread().map_err(cuda("the GPU's context"))?;
        let facts = facts_of_all(engine, context)?;
        let mut inside = Inside::of(&facts, &engine.topology);
        let mut nccl = None;
        if inside == Inside::Nccl {
            match communicator(engine, context)? {
                Ok(made) => nccl = made,
                Err(why) => inside = Inside::Host(why),
            }
        }
        if let (Inside::Host(why), 0) = (&inside, engine.transport.rank()) {
            tracing::warn!("arrays on GPUs go through the host: {why}");
        }
        let registry = engine.transport.registry();
        let slot = || Slot::new(context, &registry);
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
    pub(super) fn nccl(&mut self) -> &mut nccl::Communicator {
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
fn facts_of_all(engine: &mut Engine, context: &CudaContext) -> Result<Vec<Facts>> {
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
    let all = gathered(engine, &words)?;
    Ok(bytemuck::cast_slice(&all).to_vec())
}

/// NCCL's communicator of this rank's node, `None` where it is alone; or why NCCL refuses, on whichever rank.
fn communicator(
    engine: &mut Engine,
    context: &Arc<CudaContext>,
) -> Result<Result<Option<nccl::Communicator>, String>> {
    let rank = engine.transport.rank();
    let node = engine.topology.node(engine.topology.node_of(rank));
    let is_leader = engine.topology.local_rank(rank) == 0;
    let library = nccl::library()?;
    // Other ranks must hear of it if this one has no identity to offer, so it offers one that nobody uses.
    let offered = if is_leader { UniqueId::new(library) } else { Ok(UniqueId::from_bytes([0; 128])) };
    let words: [u64; 16] = bytemuck::cast(offered.as_ref().map_or([0; 128], |id| *id.as_bytes()));
    let all = gathered(engine, &words)?;
    let of_leader = &all[node.member(0) * words.len()..][..words.len()];
    let bytes: [u8; 128] = bytemuck::cast(<[u64; 16]>::try_from(of_leader).expect("one of many"));

    let made = if node.ranks() == 1 {
        Ok(None)
    } else if bytes == [0; 128] {
        Err(format!("rank {} could not begin an NCCL communicator", node.member(0)))
    } else {
        let (ranks, position) = (node.ranks(), engine.topology.local_rank(rank));
        let id = UniqueId::from_bytes(bytes);
        let timeout = engine.patience().timeout;
        let begun = nccl::Communicator::begin(library, ranks, position, &id, context, timeout);
        let ready = begun.and_then(|mut comm| comm.wait_until_ready(timeout).map(|()| comm));
        ready.map(Some).map_err(|error| error.to_string())
    };
    let refused = gathered(engine, &[u64::from(made.is_err())])?;
    Ok(match (made, refused.iter().position(|&refused| refused != 0)) {
        (Err(why), _) => Err(format!("NCCL refused on rank {rank}: {why}")),
        (Ok(_), Some(other)) => Err(format!("NCCL refused on rank {other}")),
        (Ok(made), None) => Ok(made),
    })
}

/// What every rank gives, as many elements each, rank 0's first.
fn gathered<T: Element>(engine: &mut Engine, own: &[T]) -> Result<Vec<T>> {
    let (rank, ranks) = (engine.transport.rank(), engine.topology.ranks());
    let mut all = vec![T::zeroed(); own.len() * ranks];
    all[rank * own.len()..][..own.len()].copy_from_slice(own);
    let call = Call { operation: Operation::AllGather, op: None, dtype: T::DTYPE, count: all.len() };
    let bytes = bytemuck::cast_slice_mut(&mut all);
    engine.run_planned(&Choice::Algorithm(Algorithm::Ring), &call, bytes)?;
    Ok(all)
}
