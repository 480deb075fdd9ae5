"""Conversion of arrays of every kind to arguments of the library."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from . import _unisono
from .gpu import is_on_gpu, on_stream


class _Comm(Protocol):
    def own_part(self, count: int, counts: Sequence[int] | None = None) -> slice: ...


def buffer_of(array: Any) -> Any:
    """Converts an array to an object with a buffer, or to an array in GPU memory."""
    if isinstance(array, np.ndarray):
        return _unisono.TypedArray(array.view(np.uint16), "bf16") if _is_bf16(array) else array
    is_tensor = _is_tensor(array)
    if is_tensor and array.requires_grad:
        raise ValueError("the tensor requires a gradient: pass tensor.detach()")
    if is_tensor and (array.is_neg() or array.is_conj()):
        raise ValueError("the tensor is a negated or conjugated view of other values: pass tensor.resolve_neg().resolve_conj()")
    if is_on_gpu(array):
        return on_stream(array)
    if is_tensor:
        # Numpy has no bfloat16.
        return _unisono.TypedArray(_view_of(array.view(sys.modules["torch"].int16)), "bf16") if _is_bf16(array) else _view_of(array)
    return np.from_dlpack(array) if hasattr(array, "__dlpack__") else array


def _view_of(tensor: Any) -> np.ndarray:
    """Returns the memory of a PyTorch tensor as a writable array."""
    view = np.from_dlpack(tensor)
    # It is read-only before numpy 2.2. A tensor whose `numpy` has been called can no longer be resized.
    return view if view.flags.writeable else tensor.numpy()


def _is_bf16(array: Any) -> bool:
    """Returns whether an array is a PyTorch tensor of bfloat16, or a numpy array of the bfloat16 of `ml_dtypes`."""
    if isinstance(array, np.ndarray):
        # The kind is compared first, since looking up the name takes longer than a short call.
        return array.dtype.kind == "V" and array.dtype.name == "bfloat16"
    return _is_tensor(array) and array.dtype is sys.modules["torch"].bfloat16


def _is_tensor(array: Any) -> bool:
    """Returns whether an array is a PyTorch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def own_part_of(comm: _Comm, array: Any, counts: Sequence[int] | None) -> Any:
    """Returns the elements of an array that belong to this rank, as a flat array."""
    if isinstance(array, _unisono.GpuArray):
        array = array.owner
    elif not _is_tensor(array) and not is_on_gpu(array):
        array = np.asarray(array if isinstance(array, np.ndarray) else buffer_of(array))
    flat = array.reshape(-1)
    return flat[comm.own_part(flat.shape[0], counts)]
