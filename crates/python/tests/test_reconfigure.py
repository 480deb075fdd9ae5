"""Process groups whose ranks change: PyTorch's interface, dist._reconfigure. The cases are those of PyTorch's own tests of it."""

import pytest
from ranks import REFUSED, check, run

pytest.importorskip("torch", minversion="2.15")

PRELUDE = (
    REFUSED
    + """
import os
import time
from datetime import timedelta
import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.FileStore(os.environ["STORE"], size)
dist.init_process_group(
    "unisono", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30), enable_reconfigure=True
)
assert dist._supports_reconfigure()
backend = dist.get_backend_impl(dist.distributed_c10d._get_default_group(), torch.device("cpu"))

def collected(name):
    store.set(f"{name}_{rank}", dist._get_reconfigure_handle())
    return [store.get(f"{name}_{other}").decode() for other in range(size)]

def reconfigure(uuid, handles, timeout=30):
    dist._reconfigure(uuid, handles, timeout=timedelta(seconds=timeout)).wait()

def check_sum(ranks):
    assert dist.get_world_size() == ranks
    tensor = torch.full((4,), dist.get_rank() + 1.0)
    dist.all_reduce(tensor)
    assert (tensor == ranks * (ranks + 1) / 2).all(), tensor

def together(name):
    store.set(f"{name}_{rank}", "1")
    [store.get(f"{name}_{other}") for other in range(size)]

handles = collected("start")
"""
)


def test_all_ranks_communicate_after_a_reconfiguration() -> None:
    check(
        PRELUDE
        + """
reconfigure(1, handles)
assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
check_sum(size)
received = torch.zeros(4)
works = [backend.send([torch.full((4,), rank + 1.0)], (rank + 1) % size, 0), backend.recv([received], (rank - 1) % size, 0)]
[work.wait() for work in works]
assert (received == (rank - 1) % size + 1).all()
reconfigure(2, collected("again"))
check_sum(size)
""",
        3,
    )


@pytest.mark.parametrize("excluded", [1, 2])
def test_group_continues_without_an_excluded_rank(excluded: int) -> None:
    check(
        PRELUDE
        + f"""
reconfigure(1, handles)
if rank != {excluded}:
    reconfigure(2, [handle for other, handle in enumerate(handles) if other != {excluded}])
    assert dist.get_rank() == rank - (rank > {excluded})
    check_sum(size - 1)
    tensor = torch.full((4,), 42.0 if dist.get_rank() == 0 else 0.0)
    dist.broadcast(tensor, group_src=0)
    assert (tensor == 42).all()
together("done")
""",
        3,
    )


def test_groups_split_and_merge() -> None:
    check(
        PRELUDE
        + """
reconfigure(10 + rank, handles[rank : rank + 1])
assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
check_sum(1)
if rank == 0:
    dist.monitored_barrier()
reconfigure(20, collected("all"))
check_sum(size)
reconfigure(30 + rank, [dist._get_reconfigure_handle()])
check_sum(1)
# Some ranks start, and the others join them. Then both parts merge.
handles = collected("late")
if rank < 1:
    reconfigure(40, handles[:1])
reconfigure(41, handles)
check_sum(size)
reconfigure(*((50, handles[:1]) if rank < 1 else (51, handles[1:])))
check_sum(1 if rank < 1 else 2)
reconfigure(52, handles)
check_sum(size)
dist.monitored_barrier()
together("aborted")
backend.abort()
reconfigure(53, handles)
check_sum(size)
refused(RuntimeError, lambda: reconfigure(53, handles), "already used")
""",
        3,
    )


def test_reconfiguration_does_not_wait_for_a_call_that_a_rank_does_not_make() -> None:
    check(
        PRELUDE.replace("seconds=30), enable", "seconds=600), enable")
        + """
reconfigure(1, handles)
works = [dist.all_reduce(torch.zeros(4), async_op=True)] if rank == 0 else []
again = collected("again")
# Rank 0 leaves first: otherwise the error of its call may name rank 1, which has left.
time.sleep(rank)
reconfigure(2, again)
check_sum(size)
for work in works:
    refused(RuntimeError, work.wait, "reconfigured")
""",
        2,
    )


def test_group_continues_without_a_killed_rank() -> None:
    ended = run(
        PRELUDE
        + """
reconfigure(1, handles)
check_sum(size)
if rank == 1:
    os.kill(os.getpid(), 9)
print(refused(RuntimeError, lambda: [dist.all_reduce(torch.zeros(1000)) for _ in range(1000)]))
reconfigure(2, [handles[0], handles[2]])
check_sum(2)
""",
        3,
    )
    assert [end.code for end in ended] == [0, -9, 0], ended
    assert all("rank 1" in ended[rank].output for rank in (0, 2)), ended


def test_missing_rank_is_named() -> None:
    check(
        PRELUDE
        + """
if rank == 0:
    refused(RuntimeError, lambda: reconfigure(1, handles, timeout=1), "rank 1 has not joined the process group within 1 s")
    gone = ["unisono localhost 1 gone", handles[0]]
    refused(RuntimeError, lambda: reconfigure(2, gone, timeout=1), "rank 0 has not joined the process group")
    reconfigure(3, handles[:1])
    # The world is kept.
    refused(RuntimeError, lambda: reconfigure(4, [handles[0], handles[0]]), "two of the handles are equal")
    refused(RuntimeError, lambda: reconfigure(4, [handles[0], "other"]), "expected a handle of a process group of unisono, got `other`")
    check_sum(1)
together("done")
"""
    )
