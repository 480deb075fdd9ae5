//! Variables that launchers set for the processes that they start.

use std::sync::LazyLock;

/// The variables by which [`Launcher::detect`] recognises MPI's launchers. A launcher without MPI removes them for its processes.
pub const OF_MPI_LAUNCHERS: [&str; 10] = [
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "PMI_SIZE",
    "PMI_RANK",
    "PMIX_RANK",
    "MPI_LOCALNRANKS",
    "MPI_LOCALRANKID",
    "HYDI_CONTROL_FD",
];

/// The program that launched this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Starter {
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// The `mpirun` of MPICH or a derivative (Hydra).
    Mpich,
    /// Slurm's `srun`.
    Slurm,
    /// `unisono launch`, `torchrun`, or any launcher that sets `RANK` and `WORLD_SIZE`.
    Variables,
    /// Another launcher, by PMI or PMIx.
    Other,
}

impl Starter {
    /// Returns the name for use in a sentence.
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenMpi => "Open MPI's mpirun",
            Self::Mpich => "the mpirun of MPICH or one of its children",
            Self::Slurm => "srun",
            Self::Variables => "a launcher that sets RANK and WORLD_SIZE",
            Self::Other => "a launcher",
        }
    }
}

/// The launcher's description of this process; fields that it does not report are `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Launcher {
    /// The launcher.
    pub starter: Option<Starter>,
    /// The rank of this process in the launched world.
    pub rank: Option<usize>,
    /// The number of processes launched.
    pub ranks: Option<usize>,
    /// The rank of this process among those on this node.
    pub local_rank: Option<usize>,
    /// The number of processes launched on this node.
    pub local_ranks: Option<usize>,
    /// The number of tasks of the Slurm job around this process, with any starter.
    pub job_tasks: Option<usize>,
}

impl Launcher {
    /// Reads the variables of Open MPI, MPICH and derivatives, Slurm, and launchers without MPI.
    pub fn detect() -> Self {
        // Read once, by `init` before MPI starts, since Open MPI sets these variables too, even without a launcher.
        static FIRST: LazyLock<Launcher> = LazyLock::new(|| Launcher::read(|name| std::env::var(name).ok()));
        *FIRST
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let number =
            |names: &[&str]| -> Option<usize> { names.iter().find_map(|name| variable(name)?.parse().ok()) };
        let has = |name: &str| variable(name).is_some();
        // srun starts the launcher inside a Slurm job, so the innermost one counts. mpirun comes before RANK, since programs use
        // that name for other purposes too.
        let starter = if has("OMPI_COMM_WORLD_SIZE") {
            Some(Starter::OpenMpi)
        } else if has("PMI_SIZE") && (has("MPI_LOCALNRANKS") || has("HYDI_CONTROL_FD")) {
            Some(Starter::Mpich)
        } else if has("RANK") && has("WORLD_SIZE") {
            Some(Starter::Variables)
        } else if has("SLURM_STEP_NUM_TASKS") {
            Some(Starter::Slurm)
        } else if has("PMI_SIZE") || has("PMIX_RANK") {
            Some(Starter::Other)
        } else {
            // Without RANK: the world is refused, instead of one of a single rank in each process.
            number(&["WORLD_SIZE"]).is_some_and(|ranks| ranks > 1).then_some(Starter::Variables)
        };
        // The script of a batch job has task number 0 without being launched.
        let job_tasks = number(&["SLURM_NTASKS", "SLURM_NPROCS"]);
        if starter == Some(Starter::Variables) {
            let (rank, ranks) = (number(&["RANK"]), number(&["WORLD_SIZE"]));
            // Without local numbers, all ranks are on one machine.
            let local_rank = number(&["LOCAL_RANK", "RANK"]);
            let local_ranks = number(&["LOCAL_WORLD_SIZE", "WORLD_SIZE"]);
            return Self { starter, rank, ranks, local_rank, local_ranks, job_tasks };
        }
        let rank = number(&["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"]);
        Self {
            starter,
            rank: rank.filter(|_| starter.is_some()),
            ranks: number(&["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"]),
            local_rank: number(&["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"]),
            local_ranks: number(&["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"])
                .or_else(|| tasks_of(&variable("SLURM_STEP_TASKS_PER_NODE")?, number(&["SLURM_NODEID"])?)),
            job_tasks,
        }
    }
}

/// Returns the cluster of TensorFlow's `MultiWorkerMirroredStrategy` (`TF_CONFIG`), as JSON, if it is set.
pub fn tf_config() -> Option<String> {
    std::env::var("TF_CONFIG").ok()
}

/// Returns the number of tasks on a node, from Slurm's list of them: `2(x3),1` is 2, 2, 2 and 1.
fn tasks_of(list: &str, node: usize) -> Option<usize> {
    let mut nodes = list.split(',').flat_map(|part| {
        let (tasks, times) = part.split_once("(x").unwrap_or((part, "1)"));
        let times = times.trim_end_matches(')').parse().unwrap_or(0);
        std::iter::repeat_n(tasks.parse().ok(), times)
    });
    nodes.nth(node)?
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::config::environment;

    fn launched(pairs: &[(&str, &str)]) -> Launcher {
        Launcher::read(environment(pairs))
    }

    #[test]
    fn tasks_of_a_node_are_parsed_from_slurm() {
        let of = |list, node| tasks_of(list, node);
        assert_eq!([0, 2, 3, 4].map(|node| of("2(x3),1", node)), [Some(2), Some(2), Some(1), None]);
        assert_eq!((of("8", 0), of("8", 1), of("x", 0), of("2(x", 0)), (Some(8), None, None, None));
        let srun = launched(&[
            ("SLURM_STEP_NUM_TASKS", "3"),
            ("SLURM_PROCID", "2"),
            ("SLURM_STEP_TASKS_PER_NODE", "2,1"),
            ("SLURM_NODEID", "1"),
        ]);
        assert_eq!((srun.rank, srun.ranks, srun.local_ranks), (Some(2), Some(3), Some(1)));
    }

    #[test]
    fn all_variables_of_mpi_launchers_are_listed() {
        let read = RefCell::new(Vec::new());
        Launcher::read(|name| {
            read.borrow_mut().push(name.to_owned());
            None
        });
        let is_other = |name: &str| name.starts_with("SLURM_") || ["RANK", "WORLD_SIZE"].contains(&name);
        for name in read.into_inner() {
            assert_ne!(OF_MPI_LAUNCHERS.contains(&&*name), is_other(&name), "{name}");
        }
    }

    #[test]
    fn innermost_launcher_is_detected() {
        let srun = [("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_PROCID", "1"), ("SLURM_NTASKS", "8")];
        let by_srun = launched(&srun);
        assert_eq!((by_srun.starter, by_srun.rank, by_srun.ranks), (Some(Starter::Slurm), Some(1), Some(2)));
        let inside = [("OMPI_COMM_WORLD_SIZE", "8"), ("OMPI_COMM_WORLD_RANK", "5")];
        let by_mpirun = launched(&[&srun[..], &inside].concat());
        assert_eq!((by_mpirun.starter, by_mpirun.rank), (Some(Starter::OpenMpi), Some(5)));
        assert_eq!(by_mpirun.ranks, Some(8));
        let inside = [("PMI_SIZE", "8"), ("PMI_RANK", "5"), ("MPI_LOCALNRANKS", "4")];
        assert_eq!(launched(&[&srun[..], &inside].concat()).starter, Some(Starter::Mpich));
        let by_torchrun =
            [("RANK", "3"), ("WORLD_SIZE", "6"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")];
        let without_mpi = launched(&[&srun[..], &by_torchrun].concat());
        assert_eq!(without_mpi.starter, Some(Starter::Variables));
        assert_eq!((without_mpi.rank, without_mpi.ranks), (Some(3), Some(6)));
        assert_eq!((without_mpi.local_rank, without_mpi.local_ranks), (Some(1), Some(2)));
        let by_loop = launched(&[("RANK", "1"), ("WORLD_SIZE", "2")]);
        assert_eq!((by_loop.local_rank, by_loop.local_ranks), (Some(1), Some(2)));
        let under_mpirun = launched(&[&by_torchrun[..], &[("OMPI_COMM_WORLD_SIZE", "8")]].concat());
        assert_eq!(under_mpirun.starter, Some(Starter::OpenMpi));
        let half = launched(&[("WORLD_SIZE", "2")]);
        assert_eq!((half.starter, half.rank, half.ranks), (Some(Starter::Variables), None, Some(2)));
        assert_eq!(launched(&[("WORLD_SIZE", "1")]), Launcher::default());
        let script = launched(&[("SLURM_NTASKS", "8"), ("SLURM_PROCID", "0")]);
        assert_eq!(script, Launcher { job_tasks: Some(8), ..Launcher::default() });
    }
}
