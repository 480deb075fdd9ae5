//! Selects the method of a call on GPUs: a vendor, an algorithm with a vendor inside nodes, or the host.

use unisono_collectives::algorithm::Role;
use unisono_collectives::{Algorithm, Operation, Topology};

use crate::call::{Call, Why};
use crate::device::Inside;
use crate::error::{Error, Result};
use crate::kernels::ReduceOp;
use crate::method::{Method, Vendor, is_for_vendors, those_for_vendors};
use crate::nccl;
use crate::select::Choice;

/// Up to this size the number of messages between nodes dominates; above it, the number of ranks that share the network.
const SMALL_BYTES: usize = 64 << 10;

/// Returns the method of a call, or `None` to leave the choice to the host. The result is identical on all ranks.
///
/// # Errors
/// [`Error::Unsupported`] if the method chosen by name is not available.
pub(super) fn choose(
    choice: &Choice,
    call: &Call,
    inside: &Inside,
    topology: &Topology,
) -> Result<Option<(Method, Why)>> {
    let by_nccl = can_all_be_nccl(call, topology).and_then(|()| has_nccl(inside));
    let in_nodes = can_be_in_nodes(call, topology).and_then(|()| has_nccl(inside));
    let method = match choice.method() {
        Some(Method::Algorithm(_)) | None => {
            return Ok(match choice.requested(call.size_bytes()) {
                Some((algorithm, why)) if is_for_vendors(algorithm) && in_nodes.is_ok() => {
                    Some((Method::InNodes(algorithm, Vendor::Nccl), why))
                }
                Some(_) => None,
                None => usual(call, by_nccl.is_ok(), in_nodes.is_ok()),
            });
        }
        Some(method) => method,
    };
    let allowed = match method {
        Method::Vendor(Vendor::Nccl) => by_nccl,
        Method::InNodes(_, Vendor::Nccl) => in_nodes,
        _ => Err("MPI's own collectives are for arrays in host memory".to_owned()),
    };
    let refused =
        |why: String| Error::Unsupported(format!("{choice} cannot carry out this {}: {why}", call.operation));
    allowed.map(|()| Some((method, Why::AskedFor))).map_err(refused)
}

fn usual(call: &Call, by_nccl: bool, in_nodes: bool) -> Option<(Method, Why)> {
    let nccl_in = |role| Method::InNodes(Algorithm::usual(role), Vendor::Nccl);
    if by_nccl {
        Some((Method::Vendor(Vendor::Nccl), Why::Default("one node, a GPU for each rank")))
    } else if !in_nodes {
        None
    } else if call.size_bytes() <= SMALL_BYTES {
        let reason = "GPUs on several nodes, small array: fewest messages between nodes";
        Some((nccl_in(Role::FewestBetweenNodes), Why::Default(reason)))
    } else {
        let reason = "GPUs on several nodes, large array: all ranks share the network";
        Some((nccl_in(Role::SharesTheNetwork), Why::Default(reason)))
    }
}

fn has_nccl(inside: &Inside) -> Result<(), String> {
    match inside {
        Inside::Nccl => Ok(()),
        Inside::Host(why) => Err(why.clone()),
        Inside::NoPairs => Err("no node has two ranks".to_owned()),
    }
}

fn can_all_be_nccl(call: &Call, topology: &Topology) -> Result<(), String> {
    if topology.nodes() > 1 {
        return Err(format!(
            "it works inside one node; for several nodes choose {}, which use NCCL in each node",
            those_for_vendors()
        ));
    }
    nccl::name(call.operation).ok_or_else(|| format!("NCCL has no {}", call.operation))?;
    can_reduce(call)
}

fn can_be_in_nodes(call: &Call, topology: &Topology) -> Result<(), String> {
    if call.operation != Operation::AllReduce {
        return Err("over several nodes, NCCL takes part in all-reduces only".to_owned());
    }
    // Between nodes the host divides the sums.
    let is_divided_by_nccl = topology.nodes() == 1 || call.op != Some(ReduceOp::Mean);
    if is_divided_by_nccl { can_reduce(call) } else { Ok(()) }
}

fn can_reduce(call: &Call) -> Result<(), String> {
    match call.op {
        Some(ReduceOp::Mean) if !call.dtype.is_float() => {
            Err(format!("NCCL rounds the mean of {} differently", call.dtype))
        }
        None | Some(ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Min | ReduceOp::Max | ReduceOp::Product) => {
            Ok(())
        }
        Some(op) => Err(format!("NCCL has no {op}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    fn name(choice: &str, call: &Call, inside: &Inside, topology: &Topology) -> String {
        match choose(&choice.parse().unwrap(), call, inside, topology) {
            Ok(Some((method, _))) => method.to_string(),
            Ok(None) => "host".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn default_depends_on_nccl_nodes_and_size() {
        let (one, two) = (Topology::single_node(4), Topology::uniform(2, 2));
        let call = |size_bytes: usize| Call::all_reduce(DType::F32, ReduceOp::Sum, size_bytes / 4);
        let (small, large) = (call(1024), call(1 << 20));
        assert_eq!(name("auto", &small, &Inside::Nccl, &one), "nccl");
        assert_eq!(name("auto", &small, &Inside::Nccl, &two), "hierarchical-copy+nccl");
        assert_eq!(name("auto", &large, &Inside::Nccl, &two), "rail+nccl");
        assert_eq!(name("ring", &large, &Inside::Nccl, &two), "host");
        assert_eq!(name("rail", &large, &Inside::Nccl, &two), "rail+nccl");
        assert_eq!(name("tree:0-2K", &small, &Inside::Nccl, &one), "host");
        assert_eq!(name("tree:0-2K", &large, &Inside::Nccl, &one), "nccl");
        assert_eq!(name("auto", &large, &Inside::NoPairs, &Topology::uniform(4, 1)), "host");
    }

    #[test]
    fn method_chosen_by_name_is_used_or_refused() {
        let (one, two) = (Topology::single_node(2), Topology::uniform(2, 2));
        let call = Call::all_reduce(DType::F32, ReduceOp::Sum, 10);
        let shared = Inside::Host("ranks 0 and 1 share a GPU".to_owned());
        assert!(name("nccl", &call, &shared, &one).ends_with("ranks 0 and 1 share a GPU"));
        assert!(name("rail+nccl", &call, &shared, &two).ends_with("ranks 0 and 1 share a GPU"));
        assert_eq!(name("rail", &call, &shared, &two), "host");
        assert!(name("nccl", &call, &Inside::Nccl, &two).contains("one node"));
        assert!(name("mpi", &call, &Inside::Nccl, &one).contains("host memory"));
    }

    #[test]
    fn a_mean_of_integers_is_divided_by_the_host() {
        let (one, two) = (Topology::single_node(2), Topology::uniform(2, 2));
        let call = Call::all_reduce(DType::I32, ReduceOp::Mean, 10);
        assert_eq!(name("auto", &call, &Inside::Nccl, &one), "host");
        assert_eq!(name("auto", &call, &Inside::Nccl, &two), "hierarchical-copy+nccl");
        assert!(name("nccl", &call, &Inside::Nccl, &one).contains("mean of i32"));
    }

    #[test]
    fn reductions_that_nccl_lacks_run_on_the_host() {
        let (one, two) = (Topology::single_node(2), Topology::uniform(2, 2));
        let call = Call::all_reduce(DType::I32, ReduceOp::BitXor, 10);
        assert_eq!(name("auto", &call, &Inside::Nccl, &one), "host");
        assert_eq!(name("auto", &call, &Inside::Nccl, &two), "host");
        assert!(name("rail+nccl", &call, &Inside::Nccl, &two).contains("NCCL has no bit-xor"));
    }
}
