//! Where processes find each other that were launched without MPI.

use std::path::PathBuf;

use super::launcher::Starter;
use crate::system::Process;

/// What `torchrun` calls a job, and how often it was started again.
const TORCH_JOB: [&str; 2] = ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"];
/// Where ranks of PyTorch's find each other: another port for each job.
const MASTER_PORT: &str = "MASTER_PORT";

/// The folder that the launcher or the user names for them, if one does.
pub(crate) fn bootstrap_folder() -> Option<PathBuf> {
    std::env::var_os(super::BOOTSTRAP_DIR).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// What is the same for all processes of a world on this machine, and another for other worlds, as far as that can be told where
/// nobody names a folder: the job of `torchrun`; the daemon that an MPI's launcher has on each machine; of others the session, which a
/// loop of a shell's and what it wraps its commands in have in common.
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
    // It becomes the name of a folder.
    name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_are_told_apart_have_other_names() {
        let of = |pairs: &[(&str, &str)]| {
            let variable =
                |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            name(Some(Starter::Variables), variable)
        };
        let torch = |restarts| of(&[(TORCH_JOB[0], "a/b"), (TORCH_JOB[1], restarts), (MASTER_PORT, "29500")]);
        assert_eq!(torch("0"), "torch-a-b-0-29500");
        assert_ne!(torch("0"), torch("1"));
        assert_ne!(of(&[]), of(&[(MASTER_PORT, "29500")]));
        assert!(of(&[]).starts_with("session-") && name(None, |_| None).starts_with("parent-"));
    }
}
