"""Waits for several calls."""

from __future__ import annotations

import time
from collections.abc import Iterable

from ._unisono import Request, UnisonoError

# The shortest and the longest time for which `wait_any` waits for one call before it polls the others, in seconds.
_PAUSE_S, _LONGEST_PAUSE_S = 50e-6, 1e-3
# A pause is this part of the wait so far.
_PAUSES_PER_WAIT = 2000


def wait_all(requests: Iterable[Request]) -> None:
    """Waits until all calls are done (MPI_Waitall), and then raises the first error of them, in their order."""
    errors: list[UnisonoError] = []
    for request in requests:
        try:
            request.wait()
        except UnisonoError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def wait_any(requests: list[Request]) -> int:
    """Waits until one of the calls is done, removes its request from the list, and returns its former index (MPI_Waitany). Raises the
    error of the call."""
    if not requests:
        raise ValueError("there is no request to wait for")
    began = time.monotonic()
    while True:
        for index, request in enumerate(requests):
            if request.is_done:
                requests.pop(index).wait()
                return index
        waited_s = time.monotonic() - began
        requests[0].wait_for(min(max(_PAUSE_S, waited_s / _PAUSES_PER_WAIT), _LONGEST_PAUSE_S))
