"""Unisono as a backend of torch.distributed, for tensors in host memory.

    dist.init_process_group("unisono")                      # PyTorch 2.14 and newer find it by themselves
    dist.init_process_group("cpu:unisono,cuda:nccl")        # beside NCCL

Programs need no other change.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from .answers import teach
from .backend import UnisonoBackend
from .hook import CompressState, all_reduce_hook, compress_hook

__all__ = ["CompressState", "UnisonoBackend", "all_reduce_hook", "compress_hook", "is_backend", "register"]

_OLDEST = (2, 14)


def is_backend() -> bool:
    """Whether this PyTorch takes backends that are written in Python."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= _OLDEST


def register() -> None:
    """Registers the backend "unisono". PyTorch calls it."""
    if hasattr(dist.Backend, "UNISONO"):
        return
    if not is_backend():
        raise RuntimeError(
            f"unisono's backend needs PyTorch {_OLDEST[0]}.{_OLDEST[1]} or newer, whose backends may be written in Python; this is "
            f"{torch.__version__}. With older ones, unisono.torch.all_reduce_hook reduces the gradients of DDP."
        )
    teach()
    dist.Backend.register_backend("unisono", _create, extended_api=True, devices=["cpu"])


def _create(options: Any, _backend_options: Any) -> UnisonoBackend:
    return UnisonoBackend(options.store, options.group_rank, options.group_size, options.timeout)
