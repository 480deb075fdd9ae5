//! The launch of the ranks, and their links.

use unisono::config::{self, Launcher};
use unisono::internals::{MpiLibrary, NodeFacts};
use unisono::{Communicator, Result};

use super::Finding;

pub(super) fn findings(comm: &mut Communicator, node: &NodeFacts) -> Result<Vec<Finding>> {
    let linked = MpiLibrary::linked(comm.ranks());
    let mut findings =
        vec![Finding::fine("unisono", env!("CARGO_PKG_VERSION")), mpi(comm, node, linked.as_ref())];
    findings.extend(linked.as_ref().filter(|_| comm.has_mpi()).and_then(difference));
    findings.extend(launcher(comm, linked.and_then(|mpi| mpi.alone_in_job)));
    findings.extend([world(comm), cores(node)]);
    findings.extend(sharing(comm, node));
    findings.extend(kernel_copies(node));
    findings.extend(gpus(comm)?);
    findings.extend(settings());
    Ok(findings)
}

/// Returns the findings for processes that form no world.
pub(super) fn findings_without_world(why: &str) -> Vec<Finding> {
    let mut findings = vec![Finding::fine("unisono", env!("CARGO_PKG_VERSION"))];
    if let Some(linked) = MpiLibrary::linked(0) {
        let difference = difference(&linked);
        findings.push(Finding::fine("MPI", linked.version));
        findings.extend(difference);
    }
    findings.push(Finding::wrong("launch", why));
    findings.extend(settings());
    findings
}

fn mpi(comm: &Communicator, node: &NodeFacts, linked: Option<&MpiLibrary>) -> Finding {
    let Some(MpiLibrary { version, .. }) = linked else {
        return Finding::note("MPI", "this program was built without MPI: its ranks run on one machine");
    };
    if !comm.has_mpi() {
        let these = if comm.transport() == "threads" { ", since they are threads" } else { "" };
        return Finding::note("MPI", format!("{version}, not used by these ranks{these}"));
    }
    match &node.other_threads {
        Ok(()) => Finding::fine("MPI", format!("{version}; calls from any thread are supported")),
        Err(error) => Finding::note("MPI", format!("{version}; {error}")),
    }
}

/// Reports if MPI's library is not the one that the program was compiled for.
fn difference(linked: &MpiLibrary) -> Option<Finding> {
    match &linked.difference {
        Ok(odd) => odd.as_ref().map(|odd| Finding::note("library", odd)),
        Err(error) => Some(Finding::wrong("library", error.to_string())),
    }
}

/// Reports the launcher that started these processes. It is compatible, since they form a world.
fn launcher(comm: &Communicator, alone_in_job: Option<String>) -> Option<Finding> {
    let launcher = Launcher::detect();
    if comm.transport() == "threads" {
        return None;
    }
    if let Some(alone) = alone_in_job {
        return Some(Finding::note("launcher", alone));
    }
    let starter = launcher.starter?;
    let fits = if comm.has_mpi() { ", which matches this program's MPI" } else { "" };
    Some(Finding::fine("launcher", format!("{}{fits}", starter.name())))
}

fn world(comm: &Communicator) -> Finding {
    let (ranks, topology) = (comm.ranks(), comm.topology());
    let sizes: Vec<_> = (0..topology.nodes()).map(|node| topology.node(node).ranks().to_string()).collect();
    let text = format!("ranks: {ranks}, on {} node(s): {}", topology.nodes(), sizes.join(", "));
    let is_launched = Launcher::detect().ranks.is_some() || comm.transport() == "threads";
    if is_launched {
        Finding::fine("world", text)
    } else {
        Finding::note("world", format!("{text}; no launcher: mpirun -n 2 unisono doctor checks more"))
    }
}

fn cores(node: &NodeFacts) -> Finding {
    let &NodeFacts { local_ranks: ranks, cores, .. } = node;
    let text = format!("{cores} for {ranks} rank(s) of the node");
    // In a container with a CPU quota a rank may get less CPU time than its cores suggest.
    let share = std::thread::available_parallelism().map_or(cores, usize::from);
    if ranks > cores {
        Finding::note("cores", format!("{text}: oversubscribed, which is slow"))
    } else if is_limited(share) && ranks > share {
        let limited = format!("a container or job is limited to the CPU time of {share}");
        Finding::note("cores", format!("{text}, but {limited}: oversubscribed, which is slow"))
    } else {
        Finding::fine("cores", text)
    }
}

/// Returns whether `share`, the number of cores whose CPU time this process may use, is less than the number that it may run
/// on.
fn is_limited(share: usize) -> bool {
    rustix::thread::sched_getaffinity(None).is_ok_and(|set| share < set.count() as usize)
}

fn sharing(comm: &Communicator, node: &NodeFacts) -> Option<Finding> {
    let is_requested = config::settings().any(|(name, value)| name == "UNISONO_TRANSPORT" && value == "mpi");
    match comm.transport() {
        _ if node.local_ranks == 1 => None,
        "mpi" if is_requested => Some(Finding::note(
            "memory",
            "ranks of a node communicate by messages, because of UNISONO_TRANSPORT=mpi",
        )),
        name if name.starts_with("shm") || name == "threads" => {
            Some(Finding::fine("memory", "shared by the ranks of a node"))
        }
        _ => {
            let text = "ranks of a node cannot share memory: check that they may open each other's /proc/PID/fd, and that memfd has space";
            Some(Finding::wrong("memory", text))
        }
    }
}

fn kernel_copies(node: &NodeFacts) -> Option<Finding> {
    Some(if node.kernel_copies? {
        Finding::fine("CMA", "the kernel copies between ranks of a node (process_vm_readv)")
    } else {
        Finding::note(
            "CMA",
            "the kernel does not copy between ranks of a node: it would be slower on this processor, or is not permitted (a warning at startup \
             has the reason); slices are copied twice",
        )
    })
}

#[cfg(feature = "nccl")]
fn gpus(comm: &mut Communicator) -> Result<Vec<Finding>> {
    use unisono::{Error, ReduceOp};

    let has_gpus = comm.device().is_ok() || unisono::internals::gpus() > 0;
    let mut any_rank_has_gpus = [u8::from(has_gpus)];
    comm.all_reduce(&mut any_rank_has_gpus, ReduceOp::Max)?;
    if any_rank_has_gpus == [0] {
        return Ok(vec![Finding::note("GPU", "none on this machine")]);
    }
    let nccl = match unisono::nccl::library() {
        Ok(library) => {
            Finding::fine("NCCL", format!("{} at {}", library.version(), library.path().display()))
        }
        Err(error) => Finding::note("NCCL", error.to_string()),
    };
    let gpu = match comm.device() {
        Ok(context) => {
            let name = context.name().unwrap_or_else(|error| error.to_string());
            Finding::fine("GPU", format!("GPU {}, {name}", context.ordinal()))
        }
        Err(error) => Finding::note("GPU", error.to_string()),
    };
    let route = match comm.device_route() {
        Ok(route) => vec![Finding::fine("arrays", format!("on GPUs: {route}"))],
        Err(Error::Unsupported(_)) if comm.device().is_err() => Vec::new(),
        Err(error @ Error::Unsupported(_)) => vec![Finding::note("arrays", error.to_string())],
        Err(error) => return Err(error),
    };
    Ok([nccl, gpu].into_iter().chain(route).collect())
}

#[cfg(not(feature = "nccl"))]
fn gpus(_: &mut Communicator) -> Result<Vec<Finding>> {
    Ok(vec![Finding::note("GPU", without_nccl(unisono::internals::gpus()))])
}

/// Returns the report of a program without NCCL on a node with this many GPUs.
#[cfg(any(test, not(feature = "nccl")))]
fn without_nccl(gpus: usize) -> String {
    let without = "this program was built without the feature `nccl`";
    match gpus {
        0 => without.to_owned(),
        gpus => format!("{without}, which is required for collectives on the {gpus} GPU(s) of this node"),
    }
}

fn settings() -> Option<Finding> {
    let settings: Vec<_> = config::settings().map(|(name, value)| format!("{name}={value}")).collect();
    (!settings.is_empty()).then(|| Finding::note("settings", settings.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_feature_is_named_on_a_node_with_gpus() {
        assert_eq!(without_nccl(0), "this program was built without the feature `nccl`");
        let report = without_nccl(8);
        assert!(report.ends_with("required for collectives on the 8 GPU(s) of this node"), "{report}");
    }
}
