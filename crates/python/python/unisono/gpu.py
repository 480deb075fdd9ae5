"""Arrays in GPU memory: PyTorch tensors, and objects with `__cuda_array_interface__`, such as arrays of CuPy and Numba."""

from __future__ import annotations

import functools
import math
import sys
from typing import Any

from . import _unisono

# The device types of DLPack for memory of a GPU, and for CUDA's managed memory.
_CUDA, _CUDA_MANAGED = 2, 13
_ELEMENTS = {"bf16", "f16", "f32", "f64", "i32", "i64", "u8", "u32", "u64"}


def is_on_gpu(array: Any) -> bool:
    """Returns whether an array is in GPU memory."""
    if isinstance(array, _unisono.GpuArray):
        return True
    device = getattr(array, "__dlpack_device__", None)
    if device is not None:
        return device()[0] in (_CUDA, _CUDA_MANAGED)
    return hasattr(array, "__cuda_array_interface__")


def on_stream(array: Any, stream: Any = None) -> _unisono.GpuArray:
    """Returns an array in GPU memory for a collective that is ordered on `stream`, a handle or an object of PyTorch or CuPy.

    The default for tensors is PyTorch's current stream. For other arrays it is the stream in their `__cuda_array_interface__`, or the
    default stream.

        comm.all_reduce(unisono.on_stream(gradients, stream))
    """
    if isinstance(array, _unisono.GpuArray):
        if stream is not None:
            raise ValueError("the array already has a stream: pass the array without one")
        return array
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        if not array.is_contiguous():
            raise ValueError("the tensor is not contiguous: pass tensor.contiguous()")
        if stream is None:
            stream = torch.cuda.current_stream(array.device)
        return _gpu_array(array.data_ptr(), array.numel(), _torch_element(array.dtype), array.dtype, stream, array)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        raise ValueError(f"{type(array)} is on a GPU and has no __cuda_array_interface__: pass the result of torch.from_dlpack")
    address, is_read_only = interface["data"]
    if is_read_only:
        raise ValueError("the array must be writable, got a read-only array")
    kind, shape = interface["typestr"], interface["shape"]
    strides, expected = interface.get("strides"), int(kind[2:])
    for length, stride in zip(reversed(shape), reversed(strides or ()), strict=False):
        if stride != expected and length > 1:
            raise ValueError("the array is not contiguous: pass a contiguous copy")
        expected *= length
    if stream is None:
        stream = interface.get("stream") or 0
    element = f"{kind[1]}{8 * int(kind[2:])}" if kind[0] in "<|=" else ""
    return _gpu_array(address, math.prod(shape), element, kind, stream, array)


class Streams:
    """The methods of a communicator for GPU streams."""

    _comm: _unisono.Comm

    def gpu_barrier(self, stream: Any = None, *, label: str | None = None, timeout: float | None = None) -> None:
        """Orders the streams of all ranks: work that is queued on this one (PyTorch's current stream) from now on begins when the work
        that each rank has queued on its own stream is done. The host does not wait."""
        self._comm.gpu_barrier(stream_handle(stream), label, timeout)

    def gpu_synchronize(self, stream: Any = None, *, timeout: float | None = None) -> None:
        """Waits until the work that is queued on a stream (PyTorch's current stream) is done. Raises an error that names the rank if a
        rank fails or does not make its calls, in which case `torch.cuda.synchronize()` would wait for ever."""
        self._comm.gpu_synchronize(stream_handle(stream), timeout)


def stream_handle(stream: Any = None) -> int:
    """Returns the handle of a stream. The default is PyTorch's current stream if PyTorch uses GPUs, and otherwise the default stream."""
    if stream is None:
        torch = sys.modules.get("torch")
        stream = torch.cuda.current_stream() if torch is not None and torch.cuda.is_initialized() else 0
    for name in ("cuda_stream", "ptr", "handle"):
        stream = getattr(stream, name, stream)
    return int(stream)


@functools.cache
def _torch_element(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.").replace("float", "f").replace("uint", "u").replace("int", "i")


def _gpu_array(address: int, count: int, element: str, dtype: Any, stream: Any, array: Any) -> _unisono.GpuArray:
    if element not in _ELEMENTS:
        raise ValueError(f"elements on GPUs must be {', '.join(sorted(_ELEMENTS))}, got `{dtype}`")
    return _unisono.GpuArray(address, count, element, stream_handle(stream), array)
