"""All-reduces that send fewer bytes between nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _unisono
from .arrays import buffer_of
from .comm import Comm


class Compressor:
    """Sums arrays with a fixed layout, such as the gradients of some parameters, with fewer bytes between nodes.

    The format is "int8", "int4", "onebit", "topk:FRACTION", "threshold:MAGNITUDE" or "powersgd:RANK"; the suffix ":stochastic" of "int8"
    or "int4" selects stochastic rounding. A call adds its residual, which it does not send, to the next array. All ranks end with
    the same bits. If all ranks share a node, a call is an ordinary all-reduce.

    An array consists of float32 tensors of these shapes, one after the other. All ranks create the compressor with the same arguments, and
    make the same calls. Compressors with different seeds round independently of each other.
    """

    def __init__(self, comm: Comm, shapes: Sequence[Sequence[int]], format: str, *, seed: int = 0) -> None:
        self._comm = comm._comm
        self._compressor = _unisono.Compressor(self._comm, [list(shape) for shape in shapes], format, seed)

    def all_reduce(self, array: Any) -> Any:
        """Leaves the sum of all ranks' arrays on every rank, and returns the array."""
        self._compressor.all_reduce(self._comm, buffer_of(array))
        return array

    @property
    def was_finite(self) -> bool:
        """True if all values of the last array were finite on all ranks. Non-finite values corrupt the residual. Always True on one node,
        where nothing is compressed."""
        return self._compressor.was_finite

    def state_dict(self) -> dict[str, Any]:
        """Returns the residual of this rank and the state of the encoding. Every rank saves and loads its own."""
        residual = np.empty(self._compressor.count, np.float32)
        self._compressor.residual(residual)
        return {"residual": residual, "encoder": self._compressor.encoder_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that `state_dict` of a compressor with the same arguments returned."""
        self._compressor.restore(np.ascontiguousarray(state["residual"], np.float32), state["encoder"])
