"""The gradients of DDP over Unisono, whatever its own backend is.

DDP looks at the types in the signature of a hook: they must not be text, as annotations from the future are.
"""

import weakref

import torch
import torch.distributed as dist
from torch.futures import Future

from ..comm import Comm
from ..start import from_store
from .tensors import ELEMENTS, checked

# A group that is made anew is another one, whatever its name.
_worlds: weakref.WeakKeyDictionary[dist.ProcessGroup, Comm] = weakref.WeakKeyDictionary()


def all_reduce_hook(group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """A communication hook of DDP that averages gradients in host memory by Unisono:

        model.register_comm_hook(None, unisono.torch.all_reduce_hook)

    The state is the process group, or None for the default one, whose own backend may be any.
    """
    group = group or dist.distributed_c10d._get_default_group()
    world = _worlds.get(group) or _start(group)
    gradients = checked(bucket.buffer())
    world._comm.call_at("all_reduce", gradients.data_ptr(), gradients.numel(), ELEMENTS[gradients.dtype], "mean")
    future: Future[torch.Tensor] = Future()
    future.set_result(bucket.buffer())
    return future


def _start(group: dist.ProcessGroup) -> Comm:
    store = dist.PrefixStore("unisono-hook", group.get_group_store())
    _worlds[group] = from_store(store, group.rank(), group.size(), name=group.group_name)
    return _worlds[group]
