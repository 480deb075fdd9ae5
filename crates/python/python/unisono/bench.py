"""Measures all-reduces on numpy arrays in ordinary and in registered memory, alternating in one process."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from . import init
from .comm import Comm

# The duration of a measurement, and the number of measurements per column, whose median is printed.
_ROUND_S, _ROUNDS = 0.05, 9
# The time for which other ranks may continue after a failure, to report its cause.
_REPORT_TIME_S = 5
_UNITS = {"K": 10, "M": 20, "G": 30}


def size_bytes(text: str) -> int:
    """Parses a size such as 8M."""
    unit = _UNITS.get(text[-1:].upper())
    return int(text) if unit is None else int(text[:-1]) << unit


def run(sizes: list[int]) -> int:
    """Measures on the ranks that a launcher has started."""
    with init() as comm:
        columns = _columns(comm)
        if comm.rank == 0:
            print(f"all-reduce of float32, {comm.size} ranks, median of {_ROUNDS} rounds in µs, {processor()}")
            print(f"{'bytes':>10}" + "".join(f"{name:>18}" for name in columns))
        for size in sizes:
            calls = {name: make(max(1, size // 4)) for name, make in columns.items()}
            seconds = median_times(comm, calls, {name: calls_per_round(comm, call) for name, call in calls.items()}, _ROUNDS)
            if comm.rank == 0:
                print(f"{size:>10}" + "".join(f"{seconds[name] * 1e6:>18.2f}" for name in columns), flush=True)
    return 0


def launch(ranks: int) -> int:
    """Starts this command on this many ranks."""
    with tempfile.TemporaryDirectory() as folder:
        shared = os.environ | {"WORLD_SIZE": str(ranks), "UNISONO_BOOTSTRAP_DIR": f"{folder}/world", "OMP_NUM_THREADS": "1"}
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "unisono", *sys.argv[1:]],
                env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                start_new_session=True,
            )
            for rank in range(ranks)
        ]
        signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
        try:
            return max(exit_codes(started))
        finally:
            for process in started:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


def exit_codes(processes: list[subprocess.Popen[bytes]]) -> list[int]:
    """Returns the exit codes of all processes, or of those that end within a few seconds after a failure."""
    deadline = float("inf")
    while True:
        codes = [abs(code) for process in processes if (code := process.poll()) is not None]
        if len(codes) == len(processes) or time.monotonic() > deadline:
            return codes
        if any(codes):
            deadline = min(deadline, time.monotonic() + _REPORT_TIME_S)
        time.sleep(0.05)


def broadcast_text(comm: Comm, text: str) -> str:
    """Returns rank 0's text on all ranks."""
    encoded = np.frombuffer(text.encode(), np.uint8)
    buffer = np.zeros(4096, np.uint8)
    buffer[: len(encoded)] = encoded
    return bytes(comm.broadcast(buffer)).rstrip(b"\0").decode()


def _columns(comm: Comm) -> dict[str, Callable[[int], Callable[[], object]]]:
    """Returns the columns of the table. Each creates a call from a number of elements."""

    def numpy(count: int) -> Callable[[], object]:
        array = np.zeros(count, np.float32)
        return lambda: comm.all_reduce(array)

    def registered(count: int) -> Callable[[], object]:
        array = comm.empty(count)
        return lambda: comm.all_reduce(array)

    return {"numpy": numpy, "numpy registered": registered}


def median_times(comm: Comm, calls: dict[str, Callable[[], object]], repeats: dict[str, int], rounds: int) -> dict[str, float]:
    """Returns the median time of each call over several rounds, in seconds. The calls alternate."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(_time(comm, call, repeats[name]))
    return {name: statistics.median(figures) for name, figures in times.items()}


def calls_per_round(comm: Comm, call: Callable[[], object], round_s: float = _ROUND_S, warm: int = 3) -> int:
    """Returns the number of calls that fill a round, after two warm-ups of `warm` calls. The number is identical on all ranks."""
    _time(comm, call, warm)
    own = np.array([round_s / _time(comm, call, warm)])
    return max(1, int(comm.broadcast(own)[0]))


def _time(comm: Comm, call: Callable[[], object], repeats: int) -> float:
    comm.barrier()
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    # The root of a broadcast returns before other ranks have received, so the measurement includes a barrier.
    comm.barrier()
    return (time.perf_counter() - began) / repeats


def processor() -> str:
    """Returns the name of the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), "unknown processor")
