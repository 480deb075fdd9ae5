"""The collectives that `bench-torch` measures."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

Call = Callable[[], object]


def _all_reduce(group: dist.ProcessGroup, size: int) -> Call:
    tensor = _floats(size)
    return lambda: dist.all_reduce(tensor, group=group)


def _all_reduce_asynchronous(group: dist.ProcessGroup, size: int) -> Call:
    tensor = _floats(size)
    return lambda: dist.all_reduce(tensor, group=group, async_op=True).wait()


def _all_reduce_functional(group: dist.ProcessGroup, size: int) -> Call:
    tensor = _floats(size)
    return lambda: functional.wait_tensor(functional.all_reduce(tensor, "sum", group))


def _reduce_scatter(group: dist.ProcessGroup, size: int) -> Call:
    blocks = _blocks(group, size)
    output = torch.zeros_like(blocks[0])
    return lambda: dist.reduce_scatter_tensor(output, blocks.view(-1), group=group)


def _all_gather(group: dist.ProcessGroup, size: int) -> Call:
    blocks = _blocks(group, size)
    own = torch.zeros_like(blocks[0])
    return lambda: dist.all_gather_into_tensor(blocks.view(-1), own, group=group)


def _all_to_all(group: dist.ProcessGroup, size: int) -> Call:
    source = _blocks(group, size).view(-1)
    output = torch.zeros_like(source)
    return lambda: dist.all_to_all_single(output, source, group=group)


def _gather(group: dist.ProcessGroup, size: int) -> Call:
    blocks = _blocks(group, size)
    own, places = torch.zeros_like(blocks[0]), list(blocks) if dist.get_rank() == 0 else None
    return lambda: dist.gather(own, places, dst=0, group=group)


def _scatter(group: dist.ProcessGroup, size: int) -> Call:
    blocks = _blocks(group, size)
    own, sources = torch.zeros_like(blocks[0]), list(blocks) if dist.get_rank() == 0 else None
    return lambda: dist.scatter(own, sources, src=0, group=group)


def _broadcast(group: dist.ProcessGroup, size: int) -> Call:
    tensor = _floats(size)
    return lambda: dist.broadcast(tensor, src=0, group=group)


def _ping_pong(group: dist.ProcessGroup, size: int) -> Call:
    """A round trip between ranks 0 and 1. Other ranks are idle."""
    if dist.get_world_size() < 2:
        raise ValueError("needs at least 2 ranks")
    tensor, rank = _floats(size), dist.get_rank()

    def ping() -> None:
        if rank == 0:
            dist.send(tensor, dst=1, group=group)
            dist.recv(tensor, src=1, group=group)
        elif rank == 1:
            dist.recv(tensor, src=0, group=group)
            dist.send(tensor, dst=0, group=group)

    return ping


def _ring(group: dist.ProcessGroup, size: int) -> Call:
    """Every rank sends to the next rank and receives from the previous one."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    if ranks < 2:
        raise ValueError("needs at least 2 ranks")
    sent, received = _floats(size), _floats(size)
    messages = [
        dist.P2POp(dist.isend, sent, (rank + 1) % ranks, group),
        dist.P2POp(dist.irecv, received, (rank - 1) % ranks, group),
    ]

    def exchange() -> None:
        for work in dist.batch_isend_irecv(messages):
            work.wait()

    return exchange


def _barrier(group: dist.ProcessGroup, _size: int) -> Call:
    return lambda: dist.barrier(group=group)


def _floats(size: int) -> torch.Tensor:
    return torch.zeros(max(1, size // 4))


def _blocks(group: dist.ProcessGroup, size: int) -> torch.Tensor:
    """Returns an array of about `size` bytes with one block for each rank."""
    ranks = dist.get_world_size(group)
    return torch.zeros(ranks, max(1, size // 4 // ranks))


# Functions that create a call from a process group and a size in bytes.
CALLS: dict[str, Callable[[dist.ProcessGroup, int], Call]] = {
    "all_reduce": _all_reduce,
    "all_reduce, asynchronous": _all_reduce_asynchronous,
    "all_reduce, functional": _all_reduce_functional,
    "reduce_scatter_tensor": _reduce_scatter,
    "all_gather_into_tensor": _all_gather,
    "all_to_all_single": _all_to_all,
    "gather": _gather,
    "scatter": _scatter,
    "broadcast": _broadcast,
    "send and recv": _ping_pong,
    "batch_isend_irecv": _ring,
    "barrier": _barrier,
}
# The printed time is that of one message, half a round trip.
MESSAGES_PER_CALL = {"send and recv": 2}
# Calls without an array, which are measured at one size only.
WITHOUT_ARRAY = {"barrier"}
