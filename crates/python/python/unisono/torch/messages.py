"""Point-to-point messages, with tags and any number in flight."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from datetime import timedelta

import torch
from torch._C._distributed_c10d import Work
from torch.distributed import Store

from .. import _unisono
from .answers import with_source
from .deadlines import Deadlines
from .work import Pending

# Between two looks into the store, for a rank that has not come to it.
_PAUSE_S = 0.002


class Messages:
    """The messages of a process group. Worlds of two ranks start when two first talk to each other."""

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        self.timeout = timeout
        self._store, self._ends = store, threading.Event()
        self._rounds: dict[tuple[int, int], int] = {}
        self._mailbox = _unisono.Mailbox(rank, size, _bound(self))
        self._deadlines = Deadlines()

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> Work:
        buffer = tensor.contiguous()
        message = Message(buffer, None)
        self._mailbox.send(_bytes(buffer), to, tag, message.end_from)
        return self._work(message, f"rank {to} has not received a message")

    def receive(self, tensor: torch.Tensor, source: int | None, tag: int) -> Work:
        buffer = tensor if tensor.is_contiguous() else torch.empty_like(tensor, memory_format=torch.contiguous_format)
        message = Message(buffer, tensor, source is None)
        self._mailbox.receive(_bytes(buffer), source, tag, message.end_from)
        return self._work(message, "no rank has sent a message" if source is None else f"rank {source} has not sent a message")

    def _work(self, message: Message, overdue: str) -> Work:
        limit = self.timeout.total_seconds()
        self._deadlines.add(limit, message, f"{overdue} within {limit:g} s")
        return message

    def close(self) -> None:
        self._ends.set()
        self._deadlines.close()
        self._mailbox.close()

    def all_gather_of(self, sender: int, receiver: int, rank: int, own: bytes) -> list[bytes]:
        """Gathers bytes from the two ranks of a pair. It does not wait inside of the store, which others use meanwhile."""
        pair = sender, receiver
        place = f"unisono/messages/{sender}-{receiver}/{self._rounds.setdefault(pair, 0)}"
        self._rounds[pair] += 1
        self._store.set(f"{place}/{rank}", b"=" + own)
        while not self._store.check([f"{place}/{1 - rank}"]):
            if self._ends.wait(_PAUSE_S):
                raise RuntimeError("the process group was shut down")
        return [self._store.get(f"{place}/{other}")[1:] for other in range(2)]


def _bound(messages: Messages) -> Callable[[int, int, int, bytes], list[bytes]]:
    # The mailbox is the messages', and must not keep them alive.
    method = weakref.WeakMethod(messages.all_gather_of)

    def all_gather_of(sender: int, receiver: int, rank: int, own: bytes) -> list[bytes]:
        if (gather := method()) is None:
            raise RuntimeError("the process group is gone")
        return gather(sender, receiver, rank, own)

    return all_gather_of


def _bytes(tensor: torch.Tensor) -> tuple[int, int, str]:
    return tensor.data_ptr(), tensor.nbytes, str(tensor.dtype).removeprefix("torch.")


class Message(Pending):
    """A message in flight, which holds its memory."""

    def __init__(self, buffer: torch.Tensor, target: torch.Tensor | None, from_any: bool = False) -> None:
        super().__init__()
        self._buffer: torch.Tensor | None = buffer
        self._target, self._from_any = target, from_any
        self._lock = threading.Lock()

    def end_from(self, source: int, error: BaseException | None) -> None:
        """The mailbox calls it, on a thread of its own, and so do deadlines: the first one counts."""
        with self._lock:
            buffer, self._buffer = self._buffer, None
        if buffer is None:
            return
        if error is not None:
            self.end(error)
            return
        if self._target is not None and buffer is not self._target:
            self._target.copy_(buffer)
        result = [] if self._target is None else [self._target]
        self.end(with_source(result, source) if self._from_any else result)
