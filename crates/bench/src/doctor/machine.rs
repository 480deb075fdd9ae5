//! The resources of a node.

use std::fs;
use std::path::Path;

use unisono::internals::{
    Level, MemoryLimit, SHARED_FOLDER, SHARED_FOR_A_RANK_BYTES, free_bytes, least_open_files, open_files,
};
use unisono::size::approximate;

use super::Finding;

/// Checks a node that has `local_ranks` of the `ranks` ranks of a world on `nodes` nodes.
pub(super) fn findings(ranks: usize, local_ranks: usize, nodes: usize) -> Vec<Finding> {
    let mut findings = vec![Finding::fine("processor", Level::best().name())];
    findings.push(shared_folder(Path::new(SHARED_FOLDER), local_ranks));
    // A limit of a container or job below the machine's memory.
    let limit = MemoryLimit::of_this_process();
    findings.extend(limit.map(|limit| Finding::note("limit", limit.to_string())));
    findings.push(files(ranks));
    findings.push(network(Path::new("/sys/class/net"), nodes));
    if nodes > 1 {
        findings.extend(congestion_control(Path::new("/proc/sys/net/ipv4/tcp_congestion_control")));
        #[cfg(feature = "ucx")]
        findings.push(ucx());
    }
    findings
}

fn shared_folder(folder: &Path, local_ranks: usize) -> Finding {
    let Some(free) = free_bytes(folder) else {
        let text = format!("{} does not exist, but MPI stores its messages there", folder.display());
        return Finding::wrong(SHARED_FOLDER, text);
    };
    let needed = local_ranks as u64 * SHARED_FOR_A_RANK_BYTES;
    if free >= needed {
        return Finding::fine(SHARED_FOLDER, "enough space");
    }
    let (free, needed) = (approximate(free), approximate(needed));
    let of_ranks = format!("for {local_ranks} rank(s) (containers: --shm-size)");
    Finding::wrong(SHARED_FOLDER, format!("{free} free, but MPI needs up to {needed} there {of_ranks}"))
}

fn files(ranks: usize) -> Finding {
    let least = least_open_files(ranks);
    match open_files() {
        Some(most) if most < least => {
            let needs = format!("needs {least} and one for each registered array (ulimit -n)");
            Finding::wrong("files", format!("a process may open {most}, but {needs}"))
        }
        Some(most) => Finding::fine("files", format!("a process may open {most}")),
        None => Finding::fine("files", "a process may open any number"),
    }
}

/// Lists the network interfaces that are up, with their rates if known.
fn network(folder: &Path, nodes: usize) -> Finding {
    let read = |path: &Path| fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
    let up = |entry: &fs::DirEntry| {
        // Loopback and tunnels report "unknown"; interfaces with a carrier report "up".
        read(&entry.path().join("operstate")) == "up"
    };
    let named = |entry: fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        match read(&entry.path().join("speed")).parse::<i64>() {
            Ok(rate) if rate > 0 => format!("{name} ({rate} Mbit/s)"),
            _ => name,
        }
    };
    let mut interfaces: Vec<_> =
        fs::read_dir(folder).into_iter().flatten().flatten().filter(up).map(named).collect();
    interfaces.sort();
    match (interfaces.is_empty(), nodes) {
        (false, _) => Finding::fine("network", interfaces.join(", ")),
        (true, 1) => Finding::note("network", "no interface is up; none is required for one node"),
        (true, _) => Finding::wrong("network", "no interface is up, although there are several nodes"),
    }
}

#[cfg(feature = "ucx")]
fn ucx() -> Finding {
    match unisono::internals::ucx_version() {
        Ok(version) => Finding::fine("UCX", version),
        Err(why) => Finding::note("UCX", why),
    }
}

/// Reports a congestion control that paces packets: BBR and its successors. The pacing delays messages longer than a packet.
fn congestion_control(setting: &Path) -> Option<Finding> {
    let name = fs::read_to_string(setting).unwrap_or_default().trim().to_owned();
    name.starts_with("bbr").then(|| {
        let remedy =
            "within a cluster other algorithms are faster (sysctl net.ipv4.tcp_congestion_control=cubic)";
        Finding::note(
            "tcp",
            format!("{name} paces packets, which delays messages of 64 KiB and more; {remedy}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn missing_folder_is_wrong() {
        assert_eq!(shared_folder(Path::new("/no/such/folder"), 2).state, State::Wrong);
        assert_eq!(shared_folder(&std::env::temp_dir(), usize::MAX >> 32).state, State::Wrong);
    }

    #[test]
    fn active_interfaces_are_named() {
        let folder = std::env::temp_dir().join(format!("unisono-doctor-{}", std::process::id()));
        let interface = |name: &str, state: &str, speed: &str| {
            fs::create_dir_all(folder.join(name)).unwrap();
            fs::write(folder.join(name).join("operstate"), state).unwrap();
            fs::write(folder.join(name).join("speed"), speed).unwrap();
        };
        interface("eth0", "up\n", "10000\n");
        interface("eth1", "down\n", "10000\n");
        interface("veth", "up\n", "-1\n");
        let found = network(&folder, 2);
        fs::remove_dir_all(folder.join("eth0")).unwrap();
        fs::remove_dir_all(folder.join("veth")).unwrap();
        let none = network(&folder, 2);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, Finding::fine("network", "eth0 (10000 Mbit/s), veth"));
        assert_eq!(none.state, State::Wrong);
    }

    #[test]
    fn only_pacing_congestion_control_is_reported() {
        let setting = std::env::temp_dir().join(format!("unisono-congestion-{}", std::process::id()));
        let found = ["bbr\n", "cubic\n"].map(|name| {
            fs::write(&setting, name).unwrap();
            congestion_control(&setting).map(|finding| finding.state)
        });
        fs::remove_file(&setting).unwrap();
        assert_eq!(found, [Some(State::Note), None]);
    }
}
