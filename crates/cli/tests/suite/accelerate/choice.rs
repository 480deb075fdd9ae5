//! The choice between MPI and Unisono for a class of calls: trials, and recorded decisions.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use unisono_testing::launch::{self, Ended};

use super::{ALL, DEADLINE, Installed, command_of, is_right, mpirun, reports};

/// A row of the report: a class of calls.
#[derive(Debug)]
pub(super) struct Row<'a> {
    function: &'a str,
    by_unisono: u64,
    by_mpi: u64,
    has_trial: bool,
    /// The longer of the times by Unisono and by MPI in the last trial.
    pub(super) most_us: f64,
    chosen: &'a str,
}

/// Returns the rows of calls that either library could execute.
pub(super) fn rows(ended: &Ended) -> Vec<Row<'_>> {
    let rows = ended.stderr.lines().filter_map(|line| line.strip_prefix("unisono: "));
    rows.filter_map(row).filter(|row| row.function != "barrier").collect()
}

/// Parses a row. Its fields follow the size class, which is `< N` or `any`.
fn row(text: &str) -> Option<Row<'_>> {
    let (before, after) = text.split_at(text.find(" < ").or_else(|| text.find(" any "))?);
    let (numbers, chosen) = after.trim_start_matches(" <").rsplit_once("  ")?;
    let numbers: Vec<_> = numbers.split_whitespace().collect();
    let of_trial = numbers.get(4..).unwrap_or_default().iter().filter_map(|time| time.parse().ok());
    Some(Row {
        function: before.split_whitespace().next()?,
        by_unisono: numbers.get(1)?.parse().ok()?,
        by_mpi: numbers.get(2)?.parse().ok()?,
        has_trial: numbers.len() == 6,
        most_us: of_trial.fold(0.0, f64::max),
        chosen,
    })
}

/// Runs `choices.c` with a report and the given variables. A rank pauses up to `pause_us` before a call.
fn choices(
    installed: &Installed,
    mpi: &str,
    ranks: usize,
    (calls, pause_us): (u32, u32),
    set: &[(&str, &str)],
) -> Command {
    let program = installed.c(mpi, "choices.c");
    let mut command =
        installed.accelerate(mpi, ranks, &program, &[&calls.to_string(), &pause_us.to_string()]);
    command.env_remove("UNISONO_ACCELERATE").envs(set.iter().copied());
    command
}

fn run(installed: &Installed, mpi: &str, ranks: usize, calls: (u32, u32), set: &[(&str, &str)]) -> Ended {
    is_right(launch::run(choices(installed, mpi, ranks, calls, set), DEADLINE), ranks)
}

/// The rounds after which every class has had a trial. This needs 31 calls of its communicator, and 64 calls of the class. Every fourth call is on
/// another communicator, and every third has the size of the class.
const TRIED: u32 = 300;
/// Fourteen functions and reductions, each with three sizes, and three functions whose sizes ranks do not know.
const CLASSES: usize = 45;

pub(super) fn ranks_agree(installed: &Installed, mpi: &'static str) {
    // MPICH ranks that outnumber the cores yield late.
    let ranks = if mpi == "openmpi" { 4 } else { 2 };
    let ended = run(installed, mpi, ranks, (TRIED, 300), &[]);
    let rows = rows(&ended);
    assert!(rows.len() == CLASSES && rows.iter().all(|row| row.has_trial), "{rows:#?}");
    assert!(rows.iter().all(|row| row.by_unisono >= 12 && row.by_mpi >= 12), "{rows:#?}");
    // A class has another trial after a thousand calls.
    run(installed, mpi, 2, (4600, 0), &[]);
}

pub(super) fn extremes(installed: &Installed, mpi: &'static str) {
    // MPICH ranks that outnumber the cores yield late.
    let ranks = if mpi == "openmpi" { 3 } else { 2 };
    let mut command = installed.accelerate(mpi, ranks, &installed.c(mpi, "extremes.c"), &[]);
    command.env_remove("UNISONO_ACCELERATE");
    is_right(launch::run(command, DEADLINE), ranks);
}

pub(super) fn no_memory(installed: &Installed, mpi: &'static str) {
    let mut command = installed.accelerate(mpi, 2, &installed.c(mpi, "memory.c"), &[]);
    command.env_remove("UNISONO_ACCELERATE");
    let ended = is_right(launch::run(command, DEADLINE), 2);
    assert!(reports(&ended, "bcast", "MPI: a rank has no memory to pack values"), "{ended:?}");
}

pub(super) fn few_calls(installed: &Installed, mpi: &'static str) {
    let ended = run(installed, mpi, 2, (4, 0), &[]);
    let rows = rows(&ended);
    assert!(!rows.is_empty(), "{ended:?}");
    for row in rows {
        assert!(row.by_unisono == 0 && row.chosen == "MPI: too few calls for a trial", "{row:?}");
    }
}

pub(super) fn gpu_arrays(installed: &Installed, mpi: &'static str) {
    let options = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
    let gpu = installed.build(&command_of(mpi, "mpicc"), "gpu.c", &options);
    let program = installed.c(mpi, "calls.c");
    let run = |setting: &str| {
        let arguments = [gpu.to_str().unwrap(), program.to_str().unwrap()];
        let mut command = installed.accelerate(mpi, 2, Path::new("sh"), &preloading(&arguments));
        command.env("UNISONO_ACCELERATE", setting);
        is_right(launch::run(command, DEADLINE), 2)
    };
    let ended = run(ALL);
    assert!(reports(&ended, "bcast", "MPI: arrays may be in GPU memory"), "{ended:?}");
    assert!(!ended.stderr.contains("  unisono\n"), "{ended:?}");
    let ended = run(&format!("{ALL},cuda"));
    assert!(reports(&ended, "bcast", "  unisono"), "{ended:?}");
}

/// Returns the arguments of `sh` that run a program with another library, behind those that are preloaded already.
fn preloading<'a>(library_and_command: &[&'a str]) -> Vec<&'a str> {
    [&["-c", r#"LD_PRELOAD=$LD_PRELOAD:$0 exec "$@""#], library_and_command].concat()
}

/// Compiles `delay.c`, and runs the program with it behind the library.
pub(super) fn slow_mpi(installed: &Installed, mpi: &'static str) {
    let delay = installed.build(&command_of(mpi, "mpicc"), "delay.c", &["-shared", "-fPIC"]);
    let program = installed.c(mpi, "choices.c");
    // Only all-reduces, of which MPI also executes each check.
    let arguments = [delay.to_str().unwrap(), program.to_str().unwrap(), "300", "0", "1"];
    let mut command = installed.accelerate(mpi, 2, Path::new("sh"), &preloading(&arguments));
    command.env_remove("UNISONO_ACCELERATE");
    let ended = is_right(launch::run(command, DEADLINE), 2);
    let rows = rows(&ended);
    assert!(rows.len() == 3 && rows.iter().all(|row| row.has_trial && row.chosen == "unisono"), "{ended:?}");
}

pub(super) fn slow_unisono(installed: &Installed, mpi: &'static str) {
    let ended = run(installed, mpi, 2, (TRIED, 0), &[("UNISONO_CHAOS", "seed=7,delay_us=20000,lose=0")]);
    let by_mpi = "MPI: Unisono was not faster in the trial";
    assert!(rows(&ended).iter().all(|row| row.has_trial && row.chosen == by_mpi), "{ended:?}");
}

pub(super) fn replay(installed: &Installed, mpi: &'static str) {
    let folder = installed.programs.path();
    let file = folder.join("decisions");
    let path = file.to_str().unwrap();
    let mut records = choices(installed, mpi, 2, (TRIED, 0), &[("UNISONO_ACCELERATE_RECORD", "decisions")]);
    records.current_dir(folder);
    // Another run has begun to write decisions under the same name.
    let other = folder.join("decisions.new");
    fs::write(&other, "of another run").unwrap();
    is_right(launch::run(records, DEADLINE), 2);
    assert_eq!(fs::read_to_string(other).unwrap(), "of another run");
    let text = fs::read_to_string(&file).unwrap();
    assert_eq!(text.lines().count(), 2 + CLASSES, "{text}");
    // One library executes each class from the first call, even if the other one is faster.
    let setting = format!("fixed:{path}");
    for (from, to) in [("unisono", "unisono"), (" mpi\n", " unisono\n"), (" unisono\n", " mpi\n")] {
        let changed = text.replace(from, to);
        fs::write(&file, &changed).unwrap();
        let ended = run(installed, mpi, 2, (9, 0), &[("UNISONO_ACCELERATE", &setting)]);
        let by_unisono = rows(&ended).iter().filter(|row| row.by_mpi == 0 && row.chosen == "unisono").count();
        let by_mpi = rows(&ended).iter().filter(|row| row.by_unisono == 0 && row.chosen != "unisono").count();
        assert_eq!(by_unisono, changed.matches(" unisono\n").count(), "{ended:?}\n{changed}");
        assert_eq!(by_unisono + by_mpi, CLASSES, "{ended:?}");
    }
    // MPI executes classes that are missing in the file.
    let lines: Vec<_> = text.lines().collect();
    fs::write(&file, format!("{}\n{}\n", lines[0], lines.last().unwrap())).unwrap();
    let ended = run(installed, mpi, 2, (9, 0), &[("UNISONO_ACCELERATE", &setting)]);
    assert!(rows(&ended).iter().all(|row| row.by_unisono == 0), "{ended:?}");
}

pub(super) fn unusable_records(installed: &Installed, mpi: &'static str) {
    let file = installed.programs.path().join("decisions");
    let path = file.to_str().unwrap();
    let setting = format!("fixed:{path}");
    let set = [("UNISONO_ACCELERATE", setting.as_str())];
    let refused = |set: &[(&str, &str)], text: &str| {
        let ended = launch::run(choices(installed, mpi, 2, (1, 0), set), DEADLINE);
        assert!(!ended.status.success() && ended.stderr.contains(text), "{ended:?}");
    };
    refused(&set, "cannot read the decisions in");
    let whole = "# unisono accelerate: function, reduction, type, ranks, nodes, bytes below, carried out by\n\
                 allreduce sum i32 2 1 8 unisono\nend\n";
    fs::write(&file, whole).unwrap();
    run(installed, mpi, 2, (1, 0), &set);
    for (from, to) in
        [("end\n", ""), ("sum", "sums"), ("# unisono", "#"), (" 8 ", " 9 "), ("unisono\ne", "unisono x\ne")]
    {
        fs::write(&file, whole.replacen(from, to, 1)).unwrap();
        refused(&set, &format!("the decisions in `{path}` are damaged"));
    }
    fs::write(&file, whole).unwrap();
    // A run can replay and record the same file. A symbolic link to it stays.
    let link = installed.programs.path().join("link");
    symlink(&file, &link).unwrap();
    run(installed, mpi, 2, (1, 0), &[set[0], ("UNISONO_ACCELERATE_RECORD", link.to_str().unwrap())]);
    assert!(link.is_symlink());
    assert_eq!(fs::read_to_string(&file).unwrap(), whole);
    refused(
        &[("UNISONO_ACCELERATE_RECORD", "/nowhere/decisions")],
        "cannot record decisions in `/nowhere/decisions`",
    );
    let folder = installed.programs.path().to_str().unwrap();
    refused(&[("UNISONO_ACCELERATE_RECORD", folder)], "it is not a regular file");
    // Ranks read different files.
    fs::write(format!("{path}.1"), whole.replace("i32", "i64")).unwrap();
    let program = installed.c(mpi, "choices.c");
    let own = format!(
        "case ${{OMPI_COMM_WORLD_RANK-$PMI_RANK}} in 1) export UNISONO_ACCELERATE={setting}.1 ;; esac; exec \"$@\""
    );
    let mut command = mpirun(mpi, 2);
    command.args(["sh", "-c", &own, "sh", crate::UNISONO, "accelerate", "--libraries"]);
    command.arg(installed.prefix.join("lib/unisono")).arg(program).args(["1", "0"]).envs(set);
    let ended = launch::run(command, DEADLINE);
    assert!(!ended.status.success() && ended.stderr.contains("are not those of all ranks"), "{ended:?}");
}
