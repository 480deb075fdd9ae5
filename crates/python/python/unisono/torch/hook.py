"""The gradients of DDP over Unisono, whatever its own backend is.

DDP looks at the types in the signature of a hook: they must not be text, as annotations from the future are.
"""

import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from ..comm import Comm
from ..compressor import Compressor
from ..start import from_store

# A group that is made anew is another one, even of the same name.
_worlds: weakref.WeakKeyDictionary[dist.ProcessGroup, Comm] = weakref.WeakKeyDictionary()


def all_reduce_hook(group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """A communication hook of DDP that averages gradients in host memory by Unisono:

        model.register_comm_hook(None, unisono.torch.all_reduce_hook)

    The state is the process group, or None for the default one, whose own backend may be any.
    """
    _average(_world(group), bucket)
    return _done(bucket)


class CompressState:
    """The state of `compress_hook`: a format such as "int8", "topk:0.01" or "powersgd:4", and what each bucket has not sent yet.

    The process group, or None for the default one, may have any backend of its own.
    """

    def __init__(self, format: str, group: dist.ProcessGroup | None = None) -> None:
        self.format = format
        self._world = _world(group)
        self._compressors: dict[str, Compressor] = {}
        self._saved: dict[str, dict[str, Any]] = {}
        self._has_final_buckets = False

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """What this rank has not sent yet, by bucket: to be saved by every rank, and loaded again."""
        return self._saved | {name: compressor.state_dict() for name, compressor in self._compressors.items()}

    def load_state_dict(self, state: dict[str, dict[str, Any]]) -> None:
        """Restores what `state_dict` returned, for a model with the same buckets, before it is trained."""
        self._saved = dict(state)

    def reduce(self, bucket: dist.GradBucket) -> None:
        """Averages the gradients of a bucket."""
        gradients = bucket.buffer()
        if self._has_final_buckets and gradients.dtype == torch.float32:
            self._compressor(bucket).all_reduce(gradients.div_(self._world.size))
        else:
            _average(self._world, bucket)
        # After the first backward pass, DDP makes its buckets anew.
        self._has_final_buckets |= bucket.is_last()

    def _compressor(self, bucket: dist.GradBucket) -> Compressor:
        shapes = [list(parameter.shape) for parameter in bucket.parameters()]
        name = f"{bucket.index()}: {shapes}"
        if name not in self._compressors:
            self._compressors[name] = Compressor(self._world, shapes, self.format)
            if saved := self._saved.pop(name, None):
                self._compressors[name].load_state_dict(saved)
        return self._compressors[name]


def compress_hook(state: CompressState, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """A communication hook of DDP that sends gradients in fewer bytes between nodes:

        model.register_comm_hook(unisono.torch.CompressState("powersgd:4"), unisono.torch.compress_hook)

    The first backward pass, after which DDP makes its buckets anew, and types other than float32 are averaged as they are.
    """
    state.reduce(bucket)
    return _done(bucket)


def _average(world: Comm, bucket: dist.GradBucket) -> None:
    world.all_reduce(bucket.buffer(), "mean")


def _done(bucket: dist.GradBucket) -> Future[torch.Tensor]:
    future: Future[torch.Tensor] = Future()
    future.set_result(bucket.buffer())
    return future


def _world(group: dist.ProcessGroup | None) -> Comm:
    group = group or dist.distributed_c10d._get_default_group()
    return _worlds.get(group) or _start(group)


def _start(group: dist.ProcessGroup) -> Comm:
    store = dist.PrefixStore("unisono-hook", group.get_group_store())
    _worlds[group] = from_store(store, group.rank(), group.size(), name=group.group_name)
    return _worlds[group]
