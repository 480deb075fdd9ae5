"""How worlds start."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

from . import _unisono
from .comm import Comm


class Store(Protocol):
    """What a key-value store offers, such as torch.distributed.Store."""

    def set(self, key: str, value: bytes, /) -> None: ...

    def get(self, key: str, /) -> bytes:
        """The value of a key, once it is set; raises an error if that takes too long."""


def init(*, algorithm: str | None = None, tuning: str | os.PathLike[str] | None = None, timeout: float | None = None) -> Comm:
    """Joins the world of processes on this machine that a launcher has started: torchrun, mpirun, srun, `unisono launch`, or anything
    that sets RANK and WORLD_SIZE. Without a launcher, it is a world of one rank.

    Ranks find each other by files: in the folder UNISONO_BOOTSTRAP_DIR if that is set, or else in one shared by all processes that
    torchrun, or a session with the same MASTER_PORT, has started.

    `algorithm`: of all calls, such as "ring"; the same on all ranks. `tuning`: the file that `unisono tune` has written. `timeout`:
    how long a rank waits for another, in seconds (600).
    """
    return Comm(_unisono.launched(algorithm, tuning, timeout))


def join(address: str | os.PathLike[str], *, timeout: float | None = None) -> Comm:
    """Joins a world that grows at this address (`Comm.grow`), as one of its last ranks.

    Waits until it does, at most `timeout` seconds (600). The algorithm and the timeouts are those of the world.
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

    All of them call it. `all_gather(own)` returns the bytes of all ranks, rank 0's first; it is called equally often on all of them,
    before this returns. The settings are those of `init`.
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

    All of them call it, with a `name` that no other world of the store has: its keys begin with it. The settings are those of `init`.
    """
    rounds = iter(range(1 << 30))

    def all_gather(own: bytes) -> list[bytes]:
        place = f"{name}/{next(rounds)}"
        # A store need not take an empty value.
        store.set(f"{place}/{rank}", b"=" + own)
        return [bytes(store.get(f"{place}/{other}"))[1:] for other in range(size)]

    return from_all_gather(rank, size, all_gather, algorithm=algorithm, tuning=tuning, timeout=timeout)


def from_mpi4py(
    comm: Any,
    *,
    algorithm: str | None = None,
    tuning: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
) -> Comm:
    """Starts a world of the ranks of an mpi4py communicator. All of them call it. The settings are those of `init`."""
    return from_all_gather(comm.Get_rank(), comm.Get_size(), comm.allgather, algorithm=algorithm, tuning=tuning, timeout=timeout)
