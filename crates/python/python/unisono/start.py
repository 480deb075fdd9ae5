"""The start of worlds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

from . import _unisono
from .comm import Comm


class Store(Protocol):
    """The interface of a key-value store, such as torch.distributed.Store."""

    def set(self, key: str, value: bytes, /) -> None: ...

    def get(self, key: str, /) -> bytes:
        """Returns the value of a key, once it is set. Raises an error after a timeout."""


def init(*, algorithm: str | None = None, tuning: str | os.PathLike[str] | None = None, timeout: float | None = None) -> Comm:
    """Joins the world of processes that a launcher has started: torchrun, mpirun, srun, `unisono launch`, or any launcher that sets RANK
    and WORLD_SIZE. Without a launcher, it is a world of one rank.

    Ranks of one machine find each other by files. The folder is UNISONO_BOOTSTRAP_DIR if that is set. Otherwise all processes that torchrun
    has started, or that share a session and MASTER_PORT, share a folder. Ranks of several machines meet at rank 0, at the port after
    MASTER_PORT of MASTER_ADDR.

    `algorithm` is the algorithm of all calls, such as "ring", and identical on all ranks. `tuning` is a file written by `unisono tune`.
    `timeout` limits waits for another rank, in seconds (600).
    """
    return Comm(_unisono.launched(algorithm, tuning, timeout))


def join(address: str | os.PathLike[str], *, timeout: float | None = None) -> Comm:
    """Joins a world that grows at this address (`Comm.grow`), with a rank after the existing ones.

    Waits for the world for at most `timeout` seconds (600). The algorithm and the timeouts are those of the world.
    """
    return Comm(_unisono.joined(address, timeout))


def from_all_gather(
    rank: int,
    size: int,
    all_gather: Callable[[bytes], list[bytes]],
    *,
    algorithm: str | None = None,
    tuning: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
) -> Comm:
    """Starts a world among processes that can already gather bytes from each other.

    All of these processes call it. `all_gather(own)` returns the bytes of all ranks, rank 0's first. Every rank calls it the same number of
    times, before this function returns. Its exceptions are raised unchanged. The settings are those of `init`.
    """
    return Comm(_unisono.gathered(rank, size, all_gather, algorithm, tuning, timeout))


def from_store(
    store: Store,
    rank: int,
    size: int,
    *,
    name: str = "unisono",
    algorithm: str | None = None,
    tuning: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
) -> Comm:
    """Starts a world among processes that share a key-value store.

    All of these processes call it. `name` prefixes the keys, and must differ from the names of other worlds in the store. The settings are
    those of `init`. Without a timeout, ranks wait for each other as long as the store does.
    """
    rounds = iter(range(1 << 30))
    of_store = getattr(store, "timeout", None)
    limit = of_store.total_seconds() if timeout is None and isinstance(of_store, timedelta) else timeout
    deadline = None if limit is None else time.monotonic() + limit

    def all_gather(own: bytes) -> list[bytes]:
        place = f"{name}/{next(rounds)}"
        # A store may not accept an empty value.
        store.set(f"{place}/{rank}", b"=" + own)
        return [_value(store, f"{place}/{other}", other, deadline)[1:] for other in range(size)]

    return from_all_gather(rank, size, all_gather, algorithm=algorithm, tuning=tuning, timeout=timeout)


def _value(store: Store, key: str, rank: int, deadline: float | None) -> bytes:
    """Returns the value that a rank sets. Stores of PyTorch have `check`, with which the wait obeys the deadline and signals."""
    check = getattr(store, "check", None)
    pause = 0.001
    while check is not None and deadline is not None and not check([key]):
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank {rank} has not joined the world in time")
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return bytes(store.get(key))


def from_mpi4py(
    comm: Any,
    *,
    algorithm: str | None = None,
    tuning: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
) -> Comm:
    """Starts a world of the ranks of an mpi4py communicator. All of these ranks call it. The settings are those of `init`."""
    return from_all_gather(comm.Get_rank(), comm.Get_size(), comm.allgather, algorithm=algorithm, tuning=tuning, timeout=timeout)
