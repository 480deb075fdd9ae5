"""Runs programs on several ranks, and kills their process groups after a deadline."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

DEADLINE_S = 120
# The deep suite runs more cases, with more ranks.
IS_DEEP = os.environ.get("UNISONO_TEST_DEEP") == "1"
# Emulates ranks on two machines.
TWO_NODES = {"UNISONO_NETWORK": "tcp", "UNISONO_NODES": "1,1"}
# When a call fails, PyTorch's flight recorder imports 800 modules to record source lines before the call
# returns its error, which takes 15 s on a busy machine.
QUICK_DUMPS = {"TORCH_INCLUDE_STACK_TRACE": "0"}
# A function of programs, which asserts that a call raises an exception whose text contains the words.
REFUSED = """
def refused(kind, call, *words):
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words), error
        return error
    raise AssertionError(f"no error with {words}")
"""
# The first lines of a program on numpy arrays.
PRELUDE = f"""{REFUSED}
import numpy as np
import unisono

comm = unisono.init()
rank, size = comm.rank, comm.size
"""
# The first lines of a program on PyTorch's tensors.
TORCH_PRELUDE = f"""{REFUSED}
import os
import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.FileStore(os.environ["STORE"], size)
dist.init_process_group(os.environ.get("BACKEND", "unisono"), store=store, rank=rank, world_size=size)
assert dist.get_backend() == os.environ.get("BACKEND", "unisono")
"""


@dataclass
class Ended:
    """The result of a rank."""

    code: int
    output: str


class Forked:
    """A process that forks.py has forked, with the methods of `Popen` that `finish` calls."""

    def __init__(self, program: str, environment: dict[str, str], output: str) -> None:
        self.output, self.returncode = Path(output), None
        self.pid = ask(program=program, environment=environment, output=output)

    def poll(self) -> int | None:
        """Returns its exit code; None while it runs."""
        if self.returncode is None:
            self.returncode = ask(ends=self.pid)
        return self.returncode

    def communicate(self, timeout: float) -> tuple[str, None]:
        """Waits for its end, and returns what it has printed."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked program", timeout, self.output.read_bytes())
            time.sleep(0.01)
        return self.output.read_text(), None


def ask(**request: object) -> int | None:
    """Returns the answer of forks.py to a request."""
    server = forks()
    print(json.dumps(request), file=server.stdin, flush=True)
    return json.loads(server.stdout.readline())


@functools.cache
def forks() -> subprocess.Popen[str]:
    """Starts forks.py, which ends with this process."""
    command = [sys.executable, Path(__file__).with_name("forks.py")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True, start_new_session=True, **pipes)


def start(program: str, ranks: int, folder: str, **environment: str) -> list[subprocess.Popen[str] | Forked]:
    """Starts a program on this many ranks, as torchrun would."""
    processes: list[subprocess.Popen[str] | Forked] = []
    program = textwrap.dedent(program)
    for rank in range(ranks):
        variables = os.environ | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "UNISONO_BOOTSTRAP_DIR": f"{folder}/world",
            "UNISONO_FLIGHT_DIR": folder,
            "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/calls-of-rank-",
            **QUICK_DUMPS,
            "STORE": f"{folder}/store",
            "OMP_NUM_THREADS": "1",
            **environment,
        }
        if "import torch\n" in program:
            processes.append(Forked(program, variables, f"{folder}/output-{rank}"))
        else:
            command = [sys.executable, "-c", program]
            output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            processes.append(subprocess.Popen(command, env=variables, text=True, start_new_session=True, **output))
    return processes


def finish(processes: list[subprocess.Popen[str] | Forked], deadline_s: float = DEADLINE_S) -> list[Ended]:
    """Waits for all ranks, and returns their results."""
    ended = []
    try:
        for process in processes:
            output, _ = process.communicate(timeout=deadline_s)
            ended.append(Ended(process.returncode, output))
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return ended


def run(program: str, ranks: int = 2, **environment: str) -> list[Ended]:
    """Runs a program on this many ranks, and returns their results."""
    with tempfile.TemporaryDirectory() as folder:
        return finish(start(program, ranks, folder, **environment))


def check(program: str, ranks: int = 2, **environment: str) -> list[str]:
    """Runs a program that must succeed on all ranks. Returns their output."""
    ended = run(program, ranks, **environment)
    for rank, end in enumerate(ended):
        assert end.code == 0, f"rank {rank} of {ranks} ended with {end.code}:\n{end.output}"
    return [end.output for end in ended]


def output_of(command: list[str], folder: Path, deadline_s: float = DEADLINE_S, **environment: str) -> str:
    """Runs a command in a folder, which must succeed, and returns its output."""
    variables = {
        # Tools that programs use, such as ninja, are in the folder of the interpreter.
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        # Programs write to the test's folder, except for the compiled backend, which later tests use again.
        "HOME": str(folder),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
        "OMP_NUM_THREADS": "1",
        "UNISONO_FLIGHT_DIR": str(folder),
        "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/calls-of-rank-",
        **QUICK_DUMPS,
    }
    # A file, since processes that outlive the program may keep a pipe open.
    with (folder / "output").open("w+") as output:
        process = subprocess.Popen(
            command, env=os.environ | variables | environment, cwd=folder, start_new_session=True, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            process.wait(deadline_s)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        output.seek(0)
        text = output.read()
    assert process.returncode == 0, text
    return text
