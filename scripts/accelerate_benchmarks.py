"""Runs benchmarks with and without `unisono accelerate`, and compares their rows. Called by scripts/accelerate-benchmarks."""

import argparse
import math
import os
import re
import subprocess
import sys
from pathlib import Path

DEADLINE_S = 900
# Enough calls per row that the hundred calls of a trial are negligible.
IMB_FUNCTIONS = (
    "Allreduce Reduce Reduce_scatter Reduce_scatter_block Bcast Allgather Allgatherv Alltoall Alltoallv Gather Gatherv "
    "Scatter Scatterv Barrier"
).split()
# The first size of a run is excluded, since a world starts during it.
IMB_RUNS = [["-iter", "3000", "-msglog", "2:15"], ["-iter", "500", "-msglog", "15:22"]]
IMB_OPTIONS = ["-iter_policy", "off", "-time", "60"]
OSU = ["allgather", "alltoall", "bcast", "gather", "scatter"]
OSU_CALLS = "skip=200, loop=1000, skip_large=200, loop_large=300"

# The rows of a benchmark: the time in µs by name and size in bytes.
Rows = dict[tuple[str, int], float]


def run(command: list[str], variables: dict[str, str]) -> str:
    done = subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    if done.returncode != 0:
        sys.exit(f"accelerate-benchmarks: {' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def imb(folder: Path, ranks: int, accelerate: list[str]) -> Rows:
    """Runs IMB-MPI1 over Intel MPI. Returns the means over all ranks."""
    intel, rows = folder / "intel", {}
    variables = {"I_MPI_FABRICS": "shm", "LD_LIBRARY_PATH": str(intel / "lib")}
    launch = [str(intel / "bin/mpiexec.hydra"), "-n", str(ranks), *accelerate, str(intel / "bin/IMB-MPI1")]
    for options in IMB_RUNS:
        smallest = 1 << int(options[-1].split(":")[0])
        text = run([*launch, *IMB_FUNCTIONS, "-npmin", str(ranks), *options, *IMB_OPTIONS], variables)
        name = ""
        for line in text.splitlines():
            fields = line.split()
            if line.startswith("# Benchmarking"):
                name = fields[2]
            elif re.fullmatch(r"[\d. ]+", line) and len(fields) in (4, 5) and fields[0] != "0":
                # A barrier has no bytes.
                size = int(fields[0]) if len(fields) == 5 else 0
                if size != smallest:
                    rows[name, size] = float(fields[-1])
    return rows


def two_columns(name: str, text: str) -> Rows:
    lines = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return {(name, int(fields[0])): float(fields[1]) for fields in lines if len(fields) == 2}


def others(folder: Path, mpi: str, ranks: int, accelerate: list[str]) -> Rows:
    """Runs mpi4py's benchmarks, and the one in C."""
    variables = {"MPI4PY_MPIABI": mpi, "PYTHONPATH": str(folder / "mpi4py-4.1.2/demo")}
    launch = [f"mpirun.{mpi}", "-n", str(ranks)]
    if mpi == "openmpi":
        variables["OMPI_MCA_rmaps_base_oversubscribe"] = "1"
    else:
        variables["LD_LIBRARY_PATH"] = str(folder / "mpich")
    rows = two_columns("Allreduce", run([*launch, *accelerate, str(folder / f"all_reduce.{mpi}"), "4194304"], variables))
    # A world starts during the first size.
    del rows[min(rows)]
    python = str(folder / "python/bin/python")
    for name in OSU:
        program = f"import osu_{name} as osu; osu.osu_{name}({OSU_CALLS})"
        rows |= two_columns(f"osu_{name}", run([*launch, *accelerate, python, "-c", program], variables))
    return rows


def compare(name: str, rounds: int, measure) -> None:
    """Measures with and without the library, alternating, and prints a Markdown table."""
    without: Rows = {}
    accelerated: Rows = {}
    for _ in range(rounds):
        for rows, is_accelerated in ((without, False), (accelerated, True)):
            for key, time_us in measure(is_accelerated).items():
                rows[key] = min(time_us, rows.get(key, math.inf))
    ratios = {key: without[key] / max(accelerated[key], 0.01) for key in without if key in accelerated}
    print(f"\n{name}\n\n| benchmark | bytes | MPI | accelerated | ratio |\n|---|---|---|---|---|")
    for (benchmark, size), ratio in ratios.items():
        key = benchmark, size
        print(f"| {benchmark} | {size} | {without[key]:.2f} | {accelerated[key]:.2f} | {ratio:.2f} |")
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    slowest = min(ratios, key=ratios.get)
    below = sum(ratio < 0.95 for ratio in ratios.values())
    print(
        f"\ngeometric mean {mean:.2f}; slowest {slowest[0]} of {slowest[1]} bytes, {ratios[slowest]:.2f}; "
        f"{below} of {len(ratios)} rows below 0.95",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="accelerate-benchmarks")
    parser.add_argument("prefix", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["impi", "openmpi", "mpich"])
    arguments = parser.parse_args()
    os.environ["UNISONO_WARNINGS"] = "off"

    for mpi in ["impi", "openmpi", "mpich"]:
        if arguments.only not in (None, mpi):
            continue
        if mpi != "impi" and not (arguments.folder / f"all_reduce.{mpi}").exists():
            print(f"accelerate-benchmarks: {mpi} is skipped: mpicc.{mpi} is not installed", file=sys.stderr)
            continue
        family = "openmpi" if mpi == "openmpi" else "mpich"
        command = [str(arguments.prefix / "bin/unisono"), "accelerate", "--mpi", family]

        def measure(is_accelerated: bool, mpi: str = mpi, command: list[str] = command) -> Rows:
            accelerate = command if is_accelerated else []
            if mpi == "impi":
                return imb(arguments.folder, arguments.ranks, accelerate)
            return others(arguments.folder, mpi, arguments.ranks, accelerate)

        compare(f"{mpi}, {arguments.ranks} ranks", arguments.rounds, measure)


main()
