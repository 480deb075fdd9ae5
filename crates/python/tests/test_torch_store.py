"""The key-value store of process groups: their keys, and barriers in it."""

import pytest
from ranks import TORCH_PRELUDE as PRELUDE
from ranks import check, run

pytest.importorskip("torch", minversion="2.14")

END = "\ndist.destroy_process_group()\n"


def test_timeout_of_a_monitored_barrier_holds_for_all_ranks_together() -> None:
    ended = run(
        PRELUDE
        + """
import time
from datetime import timedelta

time.sleep([0, 1.6, 3.5][rank])
expected = "Rank 2 failed to pass" if rank == 0 else ""
refused(RuntimeError, lambda: dist.monitored_barrier(timeout=timedelta(seconds=2 if rank == 0 else 0.1)), expected)
os._exit(0)
""",
        3,
    )
    assert ended[0].code == 0, ended


def test_monitored_barriers_continue_after_a_timeout() -> None:
    check(
        PRELUDE
        + """
from datetime import timedelta

dist.barrier()
for _ in range([2, 0, 1][rank]):
    expected = "Rank 1 failed to pass" if rank == 0 else "Rank 2 successfully reached"
    refused(RuntimeError, lambda: dist.monitored_barrier(timeout=timedelta(seconds=1 if rank == 0 else 20)), expected)
if rank == 0:
    store.set("late", "")
store.wait(["late"])
keys = []
for _ in range(3):
    dist.monitored_barrier()
    dist.barrier()
    keys.append(store.num_keys())
    dist.barrier()
assert len(set(keys)) == 1, keys
"""
        + END,
        3,
    )


def test_monitored_barrier_reports_a_lost_store() -> None:
    # Rank 2 serves the store.
    ended = run(
        """
import os, time
import torch
import torch.distributed as dist
from datetime import timedelta

rank, place = int(os.environ["RANK"]), os.environ["STORE"]
if rank == 2:
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    with open(place + ".draft", "w") as file:
        file.write(str(store.port))
    os.rename(place + ".draft", place)
else:
    while not os.path.exists(place):
        time.sleep(0.01)
    with open(place) as file:
        store = dist.TCPStore("localhost", int(file.read()))
dist.init_process_group("unisono", store=store, rank=rank, world_size=3)
dist.barrier()
if rank == 0:
    try:
        dist.monitored_barrier(timeout=timedelta(seconds=20))
    except dist.DistNetworkError:
        pass
    else:
        raise AssertionError("the barrier passes without the other ranks")
time.sleep(0.5)
os._exit(0)
""",
        3,
    )
    assert ended[0].code == 0, ended


def test_groups_leave_no_keys_in_the_store() -> None:
    check(
        PRELUDE
        + """
def keys():
    dist.barrier()
    count = store.num_keys()
    dist.barrier()
    return count

before = keys()
for _ in range(3):
    dist.new_group()
assert keys() == before
"""
        + END,
        3,
    )
