"""The benchmarks of the package."""

import subprocess
import sys

import pytest
from unisono import bench


def test_benchmarks_print_their_rows() -> None:
    pytest.importorskip("torch", minversion="2.14")
    torch_rows = ["--only", "all_reduce", "--only", "DDP of an MLP"]
    commands = {
        ("numpy registered",): ["bench", "--sizes", "8,4K"],
        ("functional", "bucket views"): ["bench-torch", "--sizes", "8", "--rounds", "1", "--round-s", "0", *torch_rows],
    }
    for rows, command in commands.items():
        measure = [sys.executable, "-m", "unisono", *command, "-n", "2"]
        ended = subprocess.run(measure, capture_output=True, text=True, timeout=120, check=False)
        assert ended.returncode == 0 and all(row in ended.stdout for row in rows) and "not run" not in ended.stdout, ended


def test_benchmark_ends_when_a_rank_fails() -> None:
    # Rank 1 fails, while rank 0 waits outside the library.
    programs = ("import time; time.sleep(600)", "import sys; sys.exit(3)")
    started = [subprocess.Popen([sys.executable, "-c", program]) for program in programs]
    try:
        assert bench.exit_codes(started) == [3]
    finally:
        started[0].kill()
        started[0].wait()
