"""Calls in flight, as torch.distributed's works."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work, _create_work_from_future
from torch.futures import Future


def done(result: list[torch.Tensor]) -> Work:
    """The work of a call that is done."""
    future: Future = Future()
    future.set_result(result)
    return _create_work_from_future(future)


class Pending(Work):
    """A call that is not done."""

    def __init__(self) -> None:
        super().__init__()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._outcome: Future = Future()
        # Of a future, PyTorch hears an error only from a callback.
        self._future = self._outcome.then(_value)

    def end(self, outcome: list[torch.Tensor] | BaseException) -> None:
        """Ends the call, with its result or its error."""
        self._error = outcome if isinstance(outcome, BaseException) else None
        self._outcome.set_result(outcome)
        self._ended.set()

    def run(self, call: Callable[[], Any], result: list[torch.Tensor]) -> None:
        """Makes the call."""
        try:
            call()
        except BaseException as error:
            self.end(error)
        else:
            self.end(result)

    def wait(self, timeout: timedelta | None = None) -> bool:
        limit = timeout.total_seconds() if timeout else None
        if not self._ended.wait(limit):
            raise TimeoutError(f"a call was not done in {limit:g} s")
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> Future:
        return self._future


def _value(outcome: Future) -> Any:
    value = outcome.value()
    if isinstance(value, BaseException):
        raise value
    return value


class Lane:
    """Calls that run one after the other, in the order in which they were made, which is the same on all ranks.

    A call that its caller waits for runs on the caller's thread, unless others are in flight. So does one made by a backward pass,
    which waits for it before it returns, if the ranks are of one machine, where the cores that compute are those that reduce. Between
    machines, what is in flight and the backward pass go on at the same time.
    """

    def __init__(self, is_one_machine: bool) -> None:
        self._is_one_machine = is_one_machine
        self._calls: queue.SimpleQueue[tuple[Pending, Callable[[], Any], list[torch.Tensor]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._in_flight = 0
        self._thread: threading.Thread | None = None

    def submit(self, run: Callable[[], Any], result: list[torch.Tensor], is_async: bool) -> Work:
        """Makes a call, or starts it if the caller does not wait for it."""
        is_in_turn = not is_async or (self._is_one_machine and torch._C._current_autograd_node() is not None)
        if is_in_turn and not self._in_flight:
            run()
            return done(result)
        pending = Pending()
        with self._lock:
            self._in_flight += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="unisono", daemon=True)
                self._thread.start()
        self._calls.put((pending, run, result))
        return pending

    def close(self) -> None:
        """Ends the thread, after the calls in flight: one that runs while the interpreter ends would crash it."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._calls.put(None)
            thread.join()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            pending, run, result = call
            pending.run(run, result)
            with self._lock:
                self._in_flight -= 1
