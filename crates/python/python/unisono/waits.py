"""Waits for several calls."""

from __future__ import annotations

from collections.abc import Iterable

from ._unisono import Request, UnisonoError

# The time for which `wait_any` waits for one call before it polls the others, in seconds.
_PAUSE_S = 50e-6


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
    while True:
        for index, request in enumerate(requests):
            if request.is_done:
                requests.pop(index).wait()
                return index
        requests[0].wait_for(_PAUSE_S)
