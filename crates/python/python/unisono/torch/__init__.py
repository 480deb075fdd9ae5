"""Unisono as a backend of torch.distributed, for tensors in host memory.

    dist.init_process_group("unisono")                      # PyTorch 2.14 and newer find it automatically
    dist.init_process_group("cpu:unisono,cuda:nccl")        # together with NCCL

Programs need no other change. The backend is written in C++, and compiled for the installed PyTorch on first use.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from ..comm import open_worlds
from .build import load
from .hook import CompressState, all_reduce_hook, compress_hook

__all__ = ["CompressState", "all_reduce_hook", "compress_hook", "dump_flight_record", "register"]


def register() -> None:
    """Registers the backend "unisono". PyTorch 2.14 and newer call it. With older versions, programs must call it."""
    if not hasattr(dist.Backend, "UNISONO"):
        dist.Backend.register_backend("unisono", _create, extended_api=True, devices=["cpu"])


def dump_flight_record(prefix: str | os.PathLike[str]) -> Path:
    """Writes the last calls of this rank to a file named `prefix` and its rank, which `torchfrtrace` reads, and returns its path.

    PyTorch's flight recorder keeps the last 2000 calls, or the number in TORCH_FR_BUFFER_SIZE. When the first call fails, PyTorch writes
    the same file automatically, with TORCH_FR_DUMP_TEMP_FILE as the prefix. This needs PyTorch 2.15 or newer.
    """
    path = Path(f"{os.fspath(prefix)}{dist.get_rank()}")
    path.write_bytes(c10d._dump_fr_trace(backend="unisono"))
    return path


def _create(options: Any, _backend_options: Any) -> dist.ProcessGroup:
    # An option of PyTorch 2.15.
    reconfigurable = getattr(options, "enable_reconfigure", False)
    return _backend().create(options.store, options.group_rank, options.group_size, options.timeout, reconfigurable)


# Strong references: `open_worlds` holds weak ones.
_process_groups: list[_ProcessGroups] = []


@functools.cache
def _backend() -> ModuleType:
    backend = load()
    _process_groups.append(_ProcessGroups(backend))
    open_worlds.update(_process_groups)
    return backend


class _ProcessGroups:
    """All process groups of the program, which leaves them when it ends."""

    def __init__(self, backend: ModuleType) -> None:
        self._backend = backend

    def leave(self, error: BaseException | None) -> None:
        self._backend.leave_all("" if error is None else f"{type(error).__name__}: {error}")
