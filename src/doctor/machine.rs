//! What a node has.

use std::fs;
use std::path::Path;

use super::Finding;
use crate::Communicator;
use crate::reduce::Level;
use crate::size;

/// Open MPI and MPICH keep their own messages between ranks of a node there, some megabytes for each.
const SHARED_FOLDER: &str = "/dev/shm";
const LEAST_SHARED_BYTES: u64 = 64 << 20;
/// An MPI opens a few for each rank of the node, and some for each other node.
const LEAST_FILES: u64 = 256;

pub(super) fn findings(comm: &Communicator) -> Vec<Finding> {
    let mut findings = vec![Finding::fine("processor", Level::best().name())];
    findings.extend(shared_folder(Path::new(SHARED_FOLDER)));
    findings.extend(files());
    findings.push(network(Path::new("/sys/class/net"), comm.topology().nodes()));
    findings
}

fn shared_folder(folder: &Path) -> Option<Finding> {
    let folder_name = folder.display();
    let Ok(room) = rustix::fs::statvfs(folder) else {
        return Some(Finding::wrong(
            "/dev/shm",
            format!("there is no {folder_name}, where MPI keeps its messages"),
        ));
    };
    let free_bytes = room.f_bavail * room.f_frsize;
    let free = size::text(usize::try_from(free_bytes >> 20).unwrap_or(usize::MAX) << 20);
    Some(if free_bytes < LEAST_SHARED_BYTES {
        let least = size::text(LEAST_SHARED_BYTES as usize);
        Finding::wrong("/dev/shm", format!("{free} free, and {least} should be (containers: --shm-size)"))
    } else {
        Finding::fine("/dev/shm", "room enough")
    })
}

fn files() -> Option<Finding> {
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    Some(match most {
        Some(most) if most < LEAST_FILES => Finding::wrong(
            "files",
            format!("a process may open {most}, and should be allowed {LEAST_FILES} or more (ulimit -n)"),
        ),
        _ => Finding::fine("files", "a process may open enough"),
    })
}

/// The interfaces that are up, with their rates where they say them.
fn network(folder: &Path, nodes: usize) -> Finding {
    let read = |path: &Path| fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
    let up = |entry: &fs::DirEntry| {
        // Loopback says "unknown", and so do tunnels; what has a cable says "up".
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
        (true, 1) => Finding::note("network", "no interface is up; one node needs none"),
        (true, _) => Finding::wrong("network", "no interface is up, and there are several nodes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn a_folder_that_is_not_there_is_wrong() {
        assert_eq!(shared_folder(Path::new("/no/such/folder")).unwrap().state, State::Wrong);
    }

    #[test]
    fn interfaces_that_are_up_are_named() {
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
}
