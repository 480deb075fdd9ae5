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


class Deadlines:
    """Ends what is late, on one thread for all, which starts with the first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._heap: list[tuple[float, int, weakref.ref[Ending], BaseException]] = []
        self._thread: threading.Thread | None = None
        self._ends = False

    def add(self, seconds: float, ending: Ending, error: BaseException) -> None:
        """Ends it with this error after so many seconds."""
        with self._changed:
            heapq.heappush(self._heap, (time.monotonic() + seconds, next(self._numbers), weakref.ref(ending), error))
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="unisono-deadlines", daemon=True)
                self._thread.start()
            elif self._heap[0][3] is error:
                self._changed.notify()

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
                _, _, ending, error = heapq.heappop(self._heap)
            if (late := ending()) is not None:
                late.end_from(-1, error)
