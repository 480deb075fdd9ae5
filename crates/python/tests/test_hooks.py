"""Calls in callbacks of futures, as of DDP's communication hooks, and the hooks of Unisono."""

import pytest
from ranks import TWO_NODES, check
from test_torch import END, MODEL, PRELUDE


@pytest.mark.parametrize("nodes", [{}, TWO_NODES], ids=["one node", "two nodes"])
def test_callbacks_make_calls_before_later_calls(nodes: dict[str, str]) -> None:
    check(
        PRELUDE
        + """
import time

one, two, three, four = torch.ones(1), torch.ones(2), torch.ones(3), torch.ones(4)

def then_two(future):
    dist.all_reduce(two)
    return dist.all_reduce(three, async_op=True).get_future().wait()

future = dist.all_reduce(one, async_op=True).get_future().then(then_two)
# The last call is submitted late on one rank only.
time.sleep(0.5 * rank)
last = dist.all_reduce(four, async_op=True)
future.wait()
last.wait()
assert all((tensor == size).all() for tensor in (one, two, three, four)), (one, two, three, four)
first, second = (dist.all_reduce(tensor, async_op=True) for tensor in (one, two))
first.get_future().then(lambda _: second.get_future().wait()).wait()
dist.all_reduce(one, async_op=True).get_future().then(lambda _: dist.destroy_process_group()).wait()
""",
        **nodes,
    )


@pytest.mark.parametrize("nodes", [{}, TWO_NODES], ids=["one node", "two nodes"])
def test_model_trains_with_the_powersgd_of_pytorch(nodes: dict[str, str]) -> None:
    check(
        PRELUDE
        + MODEL
        + """
import copy
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel as DDP

def losses(group, bucket_cap_mb):
    ddp = DDP(copy.deepcopy(model), process_group=group, bucket_cap_mb=bucket_cap_mb)
    state = PowerSGDState(group, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.5)
    ddp.register_comm_hook(state, powerSGD_hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.2)
    result = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = loss_of(ddp)
        loss.backward()
        optimizer.step()
        result.append(loss.item())
    flat = nn.utils.parameters_to_vector(ddp.parameters()).detach()
    everyone = [torch.empty_like(flat) for _ in range(size)]
    dist.all_gather(everyone, flat)
    assert all(torch.equal(other, flat) for other in everyone)
    return result

# Buckets of one parameter each. With several buckets, gloo may run calls in orders that differ.
several = losses(dist.group.WORLD, 1e-6)
assert several[-1] < 0.9 * several[0], several
assert losses(dist.group.WORLD, 25) == losses(dist.new_group(backend="gloo"), 25)
"""
        + END,
        **nodes,
    )


def test_groups_and_hooks_start_again_on_the_same_store() -> None:
    check(
        PRELUDE
        + MODEL
        + """
import time
from datetime import timedelta
from torch.nn.parallel import DistributedDataParallel as DDP
import unisono.torch

for round in range(2):
    ddp = DDP(model)
    ddp.register_comm_hook(None, unisono.torch.all_reduce_hook)
    # Rank 1 must not find the keys of the first round.
    time.sleep(0.5 * (1 - rank))
    loss_of(ddp).backward()
    dist.monitored_barrier()
    dist.destroy_process_group()
    dist.init_process_group("unisono", store=store, rank=rank, world_size=size)
if rank == 0:
    refused(RuntimeError, lambda: dist.monitored_barrier(timeout=timedelta(seconds=0.5)), "Rank 1 failed to pass monitoredBarrier")
dist.barrier()
"""
        + END
    )


def test_hooks_have_the_timeout_of_the_group() -> None:
    check(
        PRELUDE
        + """
from datetime import timedelta
import numpy as np
import unisono
from unisono.torch.hook import _world

world = _world(dist.new_group(timeout=timedelta(seconds=1)))
if rank == 0:
    refused(unisono.TimeoutError, world.barrier, "waited 1.0 s for rank 1")
dist.barrier()
"""
        + END
    )
