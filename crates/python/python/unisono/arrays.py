"""Arrays of every kind, as the library takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from .gpu import is_on_gpu, on_stream


class _Comm(Protocol):
    def own_part(self, count: int, counts: Sequence[int] | None = None) -> slice: ...


def buffer_of(array: Any) -> Any:
    """The array as an object with a buffer, or in GPU memory."""
    if isinstance(array, np.ndarray):
        return array
    if is_on_gpu(array):
        return on_stream(array)
    return np.from_dlpack(array) if hasattr(array, "__dlpack__") else array


def own_part_of(comm: _Comm, array: Any, counts: Sequence[int] | None) -> Any:
    """The elements of an array that belong to this rank, flat."""
    flat = array.reshape(-1) if is_on_gpu(array) else np.asarray(buffer_of(array)).reshape(-1)
    return flat[comm.own_part(flat.shape[0], counts)]
