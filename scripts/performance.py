"""Writes the tables of docs/performance.md from rows of `unisono bench`. Called by scripts/performance."""

import datetime
import json
import os
import re
import subprocess
import sys
from pathlib import Path

MPIS = {"openmpi": "Open MPI", "mpich": "MPICH"}
BEGIN, END = "<!-- scripts/performance writes this -->\n", "<!-- until here -->\n"


def times_of(file):
    """Returns the times of Unisono and of MPI in µs, by operation, memory, ranks and bytes."""
    times = {}
    for line in file.read_text().splitlines():
        row = json.loads(line)
        kind = row["operation"], row["memory"], row["ranks"], row["bytes"]
        times.setdefault(kind, {})[row["algorithm"]] = row["time_us"]["p50"]
    return {kind: (pair["auto"], pair["mpi"]) for kind, pair in times.items()}


def size(count):
    for unit, least in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= least:
            return f"{count // least} {unit}"
    return str(count)


def table(heads, rows):
    lines = [f"| {' | '.join(row)} |" for row in [heads, *rows]]
    return "\n".join([lines[0], "|---" * len(heads) + "|", *lines[1:]]) + "\n"


def comparison(times, name, columns):
    """Returns a table of all-reduces with both times and the speed-up. A column has a name, a kind of memory and a number of ranks."""
    heads = ["bytes"] + [head for column, _, _ in columns for head in (f"{column}, µs", name, "speed-up")]
    sizes = sorted({kind[3] for kind in times if kind[:3] == ("all-reduce", *columns[0][1:])})
    rows = []
    for count in sizes:
        row = [size(count)]
        for _, memory, ranks in columns:
            ours, theirs = times["all-reduce", memory, ranks, count]
            row += [f"{ours:.2f}", f"{theirs:.2f}", f"{theirs / ours:.1f}"]
        rows.append(row)
    return table(heads, rows)


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"LC_ALL": "C"}).stdout


def machine():
    facts = dict(re.findall(r"^(.*?): +(.*)$", output("lscpu"), re.M))
    cores, cache = int(facts["CPU(s)"]), facts["L2 cache"].split(" (")[0]
    system = re.search(r'PRETTY_NAME="(.*?)(?: \(.*)?"', Path("/etc/os-release").read_text())[1]
    mpis = [f"{name} {re.search(r'[0-9]+[.][0-9.]+', output(f'mpirun.{mpi}', '--version'))[0]}" for mpi, name in MPIS.items()]
    return f"{cores} cores of {facts['Model name']} ({cache} of L2 cache in all), {system}, {', '.join(mpis)}, {datetime.date.today()}"


def tables(folder):
    of, keeps = ({mpi: times_of(folder / f"{mpi}{end}.json") for mpi in MPIS} for end in ("", "-keeps"))
    yield f"All tables of this section: {machine()}, `scripts/performance`.\n"
    for mpi, name in MPIS.items():
        yield f"**In-place sum of `f32` on two ranks, compared with {name}**:\n"
        yield comparison(of[mpi], name, [("registered", "registered", 2), ("slice", "slice", 2)])
    kept = [
        [size(kind[3]), *(f"{theirs / ours:.1f}" for ours, theirs in (keeps[mpi][kind] for mpi in MPIS))]
        for kind in sorted(keeps["openmpi"])
    ]
    yield "**Large arrays**: MPI allocates pages in every call. Speed-up with registered memory if malloc keeps these pages:\n"
    yield table(["bytes", *MPIS.values()], kept)
    yield "**More ranks than cores**, registered memory, compared with Open MPI:\n"
    yield comparison(of["openmpi"], "Open MPI", [("4 ranks", "registered", 4), ("8 ranks", "registered", 8)])
    others = sorted({kind[0] for kind in of["openmpi"]} - {"all-reduce"})
    sizes = sorted({kind[3] for kind in of["openmpi"] if kind[0] == others[0]})
    rows = []
    for operation in others:
        for mpi, name in MPIS.items():
            pairs = (of[mpi][operation, "registered", 2, count] for count in sizes)
            rows.append([operation, name, *(f"{ours:.2f}: {theirs / ours:.1f}" for ours, theirs in pairs)])
    yield "**Other operations** on two ranks, registered memory: µs and speed-up:\n"
    yield table(["operation", "compared with", *map(size, sizes)], rows)


folder, page = map(Path, sys.argv[1:])
before, rest = page.read_text().split(BEGIN)
page.write_text(before + BEGIN + "\n".join(tables(folder)) + END + rest.split(END)[1])
