//! Snapshots of every command's help, and of the errors that users meet. `UPDATE_EXPECT=1 cargo test -p unisono-cli --features full --test suite
//! snapshots` rewrites them.

use std::fs;
use std::path::Path;
use std::process::Command;

use expect_test::expect_file;
use unisono_testing::suite::Test;
use unisono_testing::tests;

use crate::{UNISONO, all_commands};

/// Commands that are refused, in a folder with the files of [`run`]. No text depends on the machine.
const REFUSED: [&str; 82] = [
    "explan",
    "bench --byts 8",
    "bench --bytes 8:4",
    "bench --bytes x",
    "bench --format jsn",
    "bench --threads 0",
    "bench --threads 1025",
    "bench --threads 2 --algorithm rimg",
    "bench --threads 2 --algorithm mpi",
    "bench --threads 2 --algorithm nccl",
    "bench --threads 2 --operation all-redcue",
    "bench --threads 2 --op average",
    "bench --threads 2 --dtype f8",
    "bench --threads 2 --memory gpu",
    "bench --threads 2 --wire int9",
    "bench --threads 2 --wire int8 --bytes 8",
    "bench --threads 2 --wire int8 --dtype f64",
    "bench --threads 2 --operation broadcast --algorithm ring --bytes 8",
    "bench --threads 2 --operation send-recv --algorithm ring --bytes 8",
    "bench --threads 1 --operation send-recv --bytes 8",
    "bench --check=maybe",
    "bench --iterations -5",
    "completions powershell",
    "doctor --threads x",
    "explain",
    "explain ring",
    "explain rign --ranks 4",
    "explain ring --ranks 2 --nodes 4",
    "explain ring --ranks 4 --operation broadcast",
    "explain ring --ranks 4 --bytes 8",
    "explain pipeline --stages 4 --micro-batches 6 --schedule outwards",
    "verify --ranks 4:1",
    "verify --algorithm rng",
    "simulate ring --nodes 2 --ranks-per-node 2",
    "simulate ring --nodes 2 --ranks-per-node 2 --bytes 1T",
    "simulate ring --nodes 2 --ranks-per-node 2 --bytes 1K --inter 5",
    "simulate ring --nodes 2 --ranks-per-node 2 --bytes 1K --inter 5,0",
    "simulate ring --nodes 9999 --ranks-per-node 9999 --bytes 1K",
    "simulate ring --nodes 2 --ranks-per-node 2 --bytes 1K --tuning missing.toml",
    "simulate ring --nodes 2 --ranks-per-node 2 --bytes 1K --tuning damaged",
    "simulate step --nodes 2 --ranks-per-node 2 --backward-ms 1",
    "simulate step --nodes 2 --ranks-per-node 2 --backward-ms 1 --model cnn",
    "simulate step --nodes 2 --ranks-per-node 2 --backward-ms 1 --layers missing.txt",
    "simulate step --nodes 2 --ranks-per-node 2 --backward-ms 0 --parameters 1M",
    "simulate step --nodes 2 --ranks-per-node 2 --backward-ms 1 --parameters 1M --wire threshold:1",
    "tune --threads 2 --out damaged",
    "tune --threads 2 --out missing/place.toml",
    "tune --threads 1 --out new.toml",
    "tune --threads 2",
    "launch -n 2",
    "launch -- true",
    "launch -n 2 --nnodes 2 -- true",
    "launch -n 1 -- ./missing",
    "launch -n 1 -- ./damaged",
    "launch -n 2 --hosts a:0 -- true",
    "launch -n 2 --hosts a --export NO_SUCH_VARIABLE -- true",
    "launch -n 2 --hosts a --elastic -- true",
    "launch -n 2 --max-restarts 1 -- true",
    "supervise",
    "supervise -- ./missing",
    "accelerate true",
    "accelerate --mpi mpich --libraries missing true",
    "hang-report missing",
    "plot missing.json --out a.svg",
    "plot damaged --out a.svg",
    "plot damaged --out a.png",
    "train --format csv",
    "train --model cnnn",
    "train --data digts",
    "train --data idx:missing",
    "train --data csv:missing.csv --target a",
    "train --optimizer adm",
    "train --learning-rate -1",
    "train --resume",
    "train --config missing.toml",
    "train --config damaged",
    "train --augment",
    "train --wire int9",
    "evaluate --checkpoint missing",
    "predict --checkpoint missing",
    "predict --checkpoint missing --prompt a",
    "serve-data --listen 127.0.0.1:0 --token-file missing",
];

fn run(folder: &Path, arguments: &str) -> (i32, String, String) {
    fs::write(folder.join("damaged"), "{ this is no file of ours\n").unwrap();
    let mut command = Command::new(UNISONO);
    command.args(arguments.split_whitespace()).current_dir(folder).env("UNISONO_TUNING", "default");
    let output = command.output().expect("the command starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code().expect("no signal"), text(output.stdout), text(output.stderr))
}

fn help_matches_the_snapshots_of_every_command() {
    let folder = tempfile::tempdir().unwrap();
    for command in [vec![String::new()], all_commands()].concat() {
        let (code, stdout, stderr) = run(folder.path(), &format!("{command} --help"));
        assert_eq!((code, stderr), (0, String::new()), "{command}");
        let name = if command.is_empty() { "unisono".to_owned() } else { command.replace(' ', "-") };
        let text: Vec<_> = stdout.lines().map(str::trim_end).collect();
        expect_file![format!("snapshots/{name}.txt")].assert_eq(&(text.join("\n") + "\n"));
    }
}

fn errors_match_the_snapshots() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = String::new();
    for arguments in REFUSED {
        let (code, _, stderr) = run(folder.path(), arguments);
        assert!(code != 0 && stderr.lines().count() == 1, "{arguments}: {code}, {stderr}");
        text += &format!("$ unisono {arguments}\n{stderr}exit code {code}\n\n");
    }
    expect_file!["snapshots/errors.txt"].assert_eq(&text);
}

fn bash_loads_the_completions() {
    let folder = tempfile::tempdir().unwrap();
    let (code, text, _) = run(folder.path(), "completions bash");
    fs::write(folder.path().join("unisono"), &text).unwrap();
    let mut bash = Command::new("bash");
    let output =
        bash.args(["-c", ". ./unisono && complete -p unisono"]).current_dir(folder.path()).output().unwrap();
    let complete = String::from_utf8_lossy(&output.stdout);
    assert!(code == 0 && complete.starts_with("complete ") && text.contains("--max-restarts"), "{complete}");
    for shell in ["zsh", "fish"] {
        let (code, text, _) = run(folder.path(), &format!("completions {shell}"));
        assert!(code == 0 && text.contains("max-restarts"), "{text}");
    }
}

fn version_names_mpi_and_features() {
    let folder = tempfile::tempdir().unwrap();
    let (code, text, _) = run(folder.path(), "--version");
    let lines: Vec<_> = text.lines().collect();
    let [name, mpi, features] = lines[..] else { panic!("{text}") };
    assert_eq!((code, name), (0, concat!("unisono ", env!("CARGO_PKG_VERSION"))));
    assert!(["MPI: Open MPI v", "MPI: MPICH "].iter().any(|start| mpi.starts_with(start)), "{mpi}");
    assert_eq!(features, "features: mpi, ucx, nccl, candle, parquet, arrow, remote, service, plot");
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        bash_loads_the_completions,
        version_names_mpi_and_features,
        help_matches_the_snapshots_of_every_command,
        errors_match_the_snapshots
    ]
}
