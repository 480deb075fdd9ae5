//! The bootstrap settings of processes launched without MPI.

use std::ffi::OsString;
use std::path::PathBuf;

use super::launcher::Starter;
use crate::system::Process;

/// The ID of a `torchrun` job, and its number of restarts.
const TORCH_JOB: [&str; 2] = ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"];
/// The machine of rank 0, as PyTorch's launcher and users set it.
const MASTER_ADDR: &str = "MASTER_ADDR";
/// The rendezvous port of PyTorch, which differs between jobs.
const MASTER_PORT: &str = "MASTER_PORT";

/// Returns the folder set by the launcher or the user, if any.
pub fn bootstrap_folder() -> Option<PathBuf> {
    std::env::var_os(super::BOOTSTRAP_DIR).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// Returns whether a launcher has restarted this rank, in a world that continues without the previous process.
pub fn joins() -> bool {
    std::env::var_os(super::JOIN).is_some_and(|value| value == "1")
}

/// Returns the rendezvous address of ranks on several machines, if the launcher or the user sets it: on rank 0's machine, the port
/// after that of PyTorch.
pub(crate) fn rendezvous() -> Option<String> {
    address(|name| std::env::var(name).ok())
}

/// Returns the secret with which ranks of several machines authenticate; empty if there is none.
pub(crate) fn secret() -> Vec<u8> {
    std::env::var_os(super::SECRET).map_or_else(Vec::new, OsString::into_encoded_bytes)
}

fn address(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let port: u16 = variable(MASTER_PORT)?.parse().ok()?;
    let host = variable(MASTER_ADDR).filter(|host| !host.is_empty())?;
    // An IPv6 address contains colons, and may be in brackets.
    let host = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host };
    Some(format!("{host}:{}", port.checked_add(1)?))
}

/// Returns a name shared by all processes of a world on this machine and no other world, as far as possible without a folder: the `torchrun` job; the
/// daemon of an MPI launcher on this machine; otherwise the session, which the processes of a shell loop share.
pub(crate) fn job(starter: Option<Starter>) -> String {
    name(starter, |name| std::env::var(name).ok())
}

fn name(starter: Option<Starter>, variable: impl Fn(&str) -> Option<String>) -> String {
    let port = variable(MASTER_PORT).unwrap_or_default();
    let named = |kind, process: Process| format!("{kind}-{}-{}-{port}", process.id, process.started);
    let name = match (starter, variable(TORCH_JOB[0])) {
        (Some(Starter::Variables), Some(job)) => {
            format!("torch-{job}-{}-{port}", variable(TORCH_JOB[1]).unwrap_or_default())
        }
        (Some(Starter::Variables), None) => named("session", Process::session()),
        _ => named("parent", Process::parent()),
    };
    // Used as a folder name.
    name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::environment;

    #[test]
    fn rendezvous_uses_the_port_after_that_of_pytorch() {
        let at = |host: &str, port: &str| {
            address(|name| Some(if name == MASTER_ADDR { host } else { port }.to_owned()))
        };
        assert_eq!(at("node1", "29500").unwrap(), "node1:29501");
        assert_eq!(at("fd00::1", "29500").unwrap(), "[fd00::1]:29501");
        assert_eq!(at("[::1]", "29500").unwrap(), "[::1]:29501");
        assert!(
            [("", "1"), ("node1", "x"), ("node1", "65535")]
                .iter()
                .all(|(host, port)| at(host, port).is_none())
        );
    }

    #[test]
    fn distinguishable_jobs_have_different_names() {
        let of = |pairs: &[(&str, &str)]| name(Some(Starter::Variables), environment(pairs));
        let torch = |restarts| of(&[(TORCH_JOB[0], "a/b"), (TORCH_JOB[1], restarts), (MASTER_PORT, "29500")]);
        assert_eq!(torch("0"), "torch-a-b-0-29500");
        assert_ne!(torch("0"), torch("1"));
        assert_ne!(of(&[]), of(&[(MASTER_PORT, "29500")]));
        assert!(of(&[]).starts_with("session-") && name(None, |_| None).starts_with("parent-"));
    }
}
