"""PyTorch's flight recorder: dumps of failed calls, and their analysis by torchfrtrace."""

import subprocess
import sys
from pathlib import Path

import pytest
from ranks import TORCH_PRELUDE as PRELUDE
from ranks import run

pytest.importorskip("torch", minversion="2.15")

# PyTorch writes a dump when a call fails.
FAILING = (
    PRELUDE
    + """
def fails(call, *tensors):
    try:
        call(*tensors)
    except dist.DistBackendError:
        return
    raise AssertionError("the call has succeeded")

"""
)


def analysis(folder: Path, program: str) -> str:
    """Runs a program on three ranks, which write dumps, and returns the analysis of torchfrtrace."""
    for rank, end in enumerate(run(FAILING + program, 3, TORCH_FR_DUMP_TEMP_FILE=str(folder / "rank_"))):
        assert end.code == 0, (rank, end.output)
    assert sorted(file.name for file in folder.iterdir()) == ["rank_0", "rank_1", "rank_2"]
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout + done.stderr


def test_missing_rank_is_named(tmp_path: Path) -> None:
    program = """
import time
from datetime import timedelta
import unisono.torch

dist.all_reduce(torch.ones(4))
dist.all_reduce(torch.ones(4), async_op=True).wait()
if rank < 2:
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=2))
    fails(dist.all_gather_into_tensor, torch.zeros(6), torch.ones(2))
else:
    time.sleep(4)
    path = unisono.torch.dump_flight_record(os.environ["TORCH_FR_DUMP_TEMP_FILE"])
    assert path.name == "rank_2", path
"""
    found = analysis(tmp_path, program)
    # The calls before are complete.
    assert found.count("Not all ranks joining collective") == 1, found
    assert "sequence number: 3" in found and "unisono:_all_gather_base" in found and "missing ranks: {2}" in found, found


def test_differing_call_is_named(tmp_path: Path) -> None:
    program = """
dist.all_reduce(torch.ones(4))
if rank < 2:
    fails(dist.all_reduce, torch.ones(4))
else:
    fails(dist.barrier)
"""
    found = analysis(tmp_path, program)
    # torchfrtrace takes the call in the first file that it finds as the right one.
    wrong = (
        "Culprit rank {}; Error type: COLLECTIVE_TYPE_MISMATCH, Expected collective type: '{}' does not match found collective type: '{}'"
    )
    first = wrong.format(2, "all_reduce", "barrier"), wrong.format(0, "barrier", "all_reduce")
    assert "Collective sequence number: 2 has errors" in found and any(text in found for text in first), found


def test_record_has_completed_works_as_completed() -> None:
    program = """
import json

works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(3)]
works.append(dist.isend(torch.ones(2), 1) if rank == 0 else dist.irecv(torch.ones(2), 0))
for work in works:
    work.wait()
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    # Until then the barrier of rank 1 has not completed.
    store.wait(["recorded"])
    dist.barrier()
else:
    work = dist.barrier(async_op=True)
    states = [entry["state"] for entry in json.loads(torch._C._distributed_c10d._dump_fr_trace_json(backend="unisono"))["entries"]]
    store.set("recorded", "")
    assert states == ["completed"] * 4 + ["scheduled"], states
    work.wait()
"""
    for end in run(PRELUDE + program):
        assert end.code == 0, end.output


def test_group_that_ends_without_a_failure_writes_no_record(tmp_path: Path) -> None:
    program = """
import time

try:
    dist.broadcast(torch.zeros(2), size, async_op=True).wait()
except RuntimeError as error:
    assert "root" in str(error), error
dist.barrier()
message = dist.irecv(torch.zeros(2), 1 - rank)
# Rank 0 leaves first, which ends the message of rank 1.
time.sleep(0.3 * rank)
dist.destroy_process_group()
"""
    for end in run(PRELUDE + program, TORCH_FR_DUMP_TEMP_FILE=str(tmp_path / "rank_")):
        assert end.code == 0, end.output
    assert not list(tmp_path.iterdir())


def test_poll_of_a_failed_message_does_not_stop_other_threads() -> None:
    program = """
import threading, time

if rank == 0:
    message, ticks = dist.irecv(torch.zeros(4), 1), [time.monotonic()]

    def tick():
        while True:
            time.sleep(0.01)
            ticks.append(time.monotonic())

    threading.Thread(target=tick, daemon=True).start()
    while not message.is_completed():
        time.sleep(0.01)
    ticks.append(time.monotonic())
    longest = max(later - earlier for earlier, later in zip(ticks, ticks[1:]))
    assert longest < 3, longest
else:
    time.sleep(0.5)
os._exit(0)
"""
    # With source lines, PyTorch waits for a thread that needs the interpreter's lock.
    ended = run(PRELUDE + program, TORCH_INCLUDE_STACK_TRACE="1")
    assert ended[0].code == 0, ended
