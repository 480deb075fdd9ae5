"""The reduction of DDP's gradients over Unisono, with any backend of the process group.

DDP checks the types in the signature of a hook. They must not be strings, as with `from __future__ import annotations`.
"""

import contextlib
import uuid
import warnings
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from ..comm import Comm
from ..compressor import Compressor
from ..start import from_store

# Keyed by the group itself, since a recreated group is another one even with the same name.
_worlds: weakref.WeakKeyDictionary[dist.ProcessGroup, Comm] = weakref.WeakKeyDictionary()


def all_reduce_hook(group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """A communication hook of DDP that averages gradients in host memory over Unisono:

        model.register_comm_hook(None, unisono.torch.all_reduce_hook)

    The state is the process group, or None for the default one. It may have any backend.
    """
    _average(_world(group), bucket)
    return _done(bucket)


class CompressState:
    """The state of `compress_hook`: a format such as "int8", "topk:0.01" or "powersgd:4", and the residual of each bucket.

    The process group, or None for the default one, may have any backend.
    """

    def __init__(self, format: str, group: dist.ProcessGroup | None = None) -> None:
        self.format = format
        self._world = _world(group)
        # All ranks refuse an unknown format now, and not in their second backward pass.
        Compressor(self._world, [], format)
        self._compressors: dict[str, Compressor] = {}
        self._saved: dict[str, dict[str, Any]] = {}
        self._has_final_buckets = False

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Returns the residual of this rank and the state of the encoding, by bucket. Every rank saves and loads its own."""
        states = {name: compressor.state_dict() for name, compressor in self._compressors.items()}
        # Tensors, since `torch.load` refuses numpy arrays by default.
        return self._saved | {name: state | {"residual": torch.from_numpy(state["residual"])} for name, state in states.items()}

    def load_state_dict(self, state: dict[str, dict[str, Any]]) -> None:
        """Restores the result of `state_dict`, for a model with the same buckets."""
        self._saved = dict(state)
        # The next call creates them again, with the saved state.
        self._compressors.clear()

    def reduce(self, bucket: dist.GradBucket) -> None:
        """Averages the gradients of a bucket."""
        gradients = bucket.buffer()
        # A bucket with complex parameters contains pairs of float32.
        is_real = gradients.dtype == torch.float32 and not any(parameter.is_complex() for parameter in bucket.parameters())
        if self._has_final_buckets and is_real:
            name, compressor = self._compressor(bucket)
            compressor.all_reduce(gradients.div_(self._world.size))
            if not compressor.was_finite:
                # As after an overflow with loss scaling. The residual would make all later gradients non-finite.
                del self._compressors[name]
        else:
            _average(self._world, bucket)
        if self._has_final_buckets and bucket.is_last() and self._saved:
            warnings.warn(f"the model has no buckets {sorted(self._saved)}, whose saved state is discarded", stacklevel=2)
            self._saved.clear()
        # After the first backward pass, DDP rebuilds its buckets.
        self._has_final_buckets |= bucket.is_last()

    def _compressor(self, bucket: dist.GradBucket) -> tuple[str, Compressor]:
        shapes = [list(parameter.shape) for parameter in bucket.parameters()]
        name = f"{bucket.index()}: {shapes}"
        if name not in self._compressors:
            self._compressors[name] = Compressor(self._world, shapes, self.format, seed=bucket.index())
            if saved := self._saved.pop(name, None):
                self._compressors[name].load_state_dict(saved)
        return name, self._compressors[name]


def compress_hook(state: CompressState, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """A communication hook of DDP that sends gradients with fewer bytes between nodes:

        model.register_comm_hook(unisono.torch.CompressState("powersgd:4"), unisono.torch.compress_hook)

    Gradients of the first backward pass, after which DDP rebuilds its buckets, and of types other than float32 are averaged uncompressed.
    """
    state.reduce(bucket)
    return _done(bucket)


def _average(world: Comm, bucket: dist.GradBucket) -> None:
    gradients = bucket.buffer()
    if gradients.dtype == torch.float16:
        # The sum of values of which the mean is finite may be too large for the type.
        world.all_reduce(gradients.div_(world.size))
    else:
        world.all_reduce(torch.view_as_real(gradients) if gradients.is_complex() else gradients, "mean")


def _done(bucket: dist.GradBucket) -> Future[torch.Tensor]:
    future: Future[torch.Tensor] = Future()
    future.set_result(bucket.buffer())
    return future


def _world(group: dist.ProcessGroup | None) -> Comm:
    group = group or dist.distributed_c10d._get_default_group()
    return _worlds.get(group) or _start(group)


def _start(group: dist.ProcessGroup) -> Comm:
    # The store may have keys of former worlds: of ranks that an elastic launcher has replaced, or of a destroyed group.
    name = [f"unisono-hook/{uuid.uuid4()}"]
    dist.broadcast_object_list(name, group=group, group_src=0)
    _worlds[group] = from_store(group.get_group_store(), group.rank(), group.size(), name=name[0], timeout=_timeout(group))
    return _worlds[group]


def _timeout(group: dist.ProcessGroup) -> float | None:
    """Returns the timeout of a group in seconds, or None if its backend has no options."""
    with contextlib.suppress(RuntimeError):
        return group._get_backend(group._device_types[0]).options._timeout.total_seconds()
    return None
