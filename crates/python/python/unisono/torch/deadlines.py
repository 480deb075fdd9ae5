"""Deadlines of messages."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
import weakref
from typing import Protocol


class Ending(Protocol):
    """What a deadline ends, unless it has ended."""

    def end_from(self, source: int, error: BaseException | None, /) -> None: ...


# From how many deadlines on those of what has ended are looked for.
_MANY = 256


class Deadlines:
    """Ends what is late, on one thread for all, which starts with the first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._heap: list[tuple[float, int, weakref.ref[Ending], str]] = []
        self._many = _MANY
        self._thread: threading.Thread | None = None
        self._ends = False

    def add(self, seconds: float, ending: Ending, cause: str) -> None:
        """Ends it with a TimeoutError after so many seconds."""
        number = next(self._numbers)
        with self._changed:
            self._forget()
            heapq.heappush(self._heap, (time.monotonic() + seconds, number, weakref.ref(ending), cause))
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="unisono-deadlines", daemon=True)
                self._thread.start()
            elif self._heap[0][1] == number:
                self._changed.notify()

    def _forget(self) -> None:
        """Drops the deadlines of what is gone, now and then: most things end long before theirs."""
        if len(self._heap) >= self._many:
            self._heap = [deadline for deadline in self._heap if deadline[2]() is not None]
            heapq.heapify(self._heap)
            self._many = 2 * len(self._heap) + _MANY

    def close(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._ends = True
            self._changed.notify()
            thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _serve(self) -> None:
        while True:
            with self._changed:
                if self._ends:
                    return
                left = self._heap[0][0] - time.monotonic() if self._heap else None
                if left is None or left > 0:
                    self._changed.wait(left)
                    continue
                _, _, ending, cause = heapq.heappop(self._heap)
            if (late := ending()) is not None:
                late.end_from(-1, TimeoutError(cause))
