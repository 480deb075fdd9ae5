"""The compiled module. The package around it is what programs use."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Self

__version__: str

class UnisonoError(RuntimeError):
    code: str
    rank: int | None
    is_fatal: bool

class MismatchError(UnisonoError): ...
class TimeoutError(UnisonoError): ...
class LeftError(UnisonoError): ...
class AbortedError(UnisonoError): ...

class Request:
    @property
    def is_done(self) -> bool: ...
    def wait(self) -> None: ...
    def wait_for(self, timeout: float) -> bool: ...

class Plan: ...

class Reduction:
    def __new__(
        cls, name: str, example: Any, is_commutative: bool, function: Callable[[bytes, bytes], bytes]
    ) -> Self: ...
    @property
    def name(self) -> str: ...

class Memory:
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Comm:
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def transport(self) -> str: ...
    def call(
        self,
        name: str,
        array: Any,
        op: str | Reduction | None = None,
        root: int | None = None,
        algorithm: str | None = None,
        label: str | None = None,
        timeout: float | None = None,
        counts: Sequence[int] | None = None,
    ) -> None: ...
    def start(
        self,
        name: str,
        array: Any,
        op: str | Reduction | None = None,
        root: int | None = None,
        algorithm: str | None = None,
        label: str | None = None,
        timeout: float | None = None,
        counts: Sequence[int] | None = None,
    ) -> Request: ...
    def plan(
        self,
        name: str,
        array: Any,
        op: str | None = None,
        root: int | None = None,
        algorithm: str | None = None,
        label: str | None = None,
        timeout: float | None = None,
        counts: Sequence[int] | None = None,
    ) -> Plan: ...
    def start_plan(self, plan: Plan) -> None: ...
    def wait_plan(self, plan: Plan) -> None: ...
    def call_at(
        self,
        name: str,
        address: int,
        count: int,
        element: str,
        op: str | Reduction | None = None,
        root: int | None = None,
        timeout: float | None = None,
        counts: Sequence[int] | None = None,
    ) -> None: ...
    def all_to_all_v(
        self,
        sent: Any,
        sent_counts: Sequence[int],
        received: Any,
        received_counts: Sequence[int],
        label: str | None = None,
        timeout: float | None = None,
    ) -> None: ...
    def all_to_all_v_at(
        self,
        sent: int,
        sent_counts: Sequence[int],
        received: int,
        received_counts: Sequence[int],
        element: str,
        timeout: float | None = None,
    ) -> None: ...
    def barrier(self, label: str | None = None, timeout: float | None = None) -> None: ...
    def send(self, array: Any, to: int, tag: int = 0, label: str | None = None, timeout: float | None = None) -> None: ...
    def receive(
        self,
        array: Any,
        from_: int | None = None,
        tag: int = 0,
        label: str | None = None,
        timeout: float | None = None,
    ) -> int: ...
    def send_async(
        self, array: Any, to: int, tag: int = 0, label: str | None = None, timeout: float | None = None
    ) -> Request: ...
    def receive_async(
        self, array: Any, from_: int, tag: int = 0, label: str | None = None, timeout: float | None = None
    ) -> Request: ...
    def split(self, color: int | None, key: int = 0) -> Comm | None: ...
    def group(self, ranks: list[int]) -> Comm | None: ...
    def own_part(self, count: int, counts: Sequence[int] | None = None) -> slice: ...
    def memory(self, size_bytes: int) -> Memory: ...
    def set_algorithm(self, name: str) -> None: ...
    def set_timeout(self, timeout: float) -> None: ...
    def fail(self, cause: str) -> None: ...
    def close(self) -> None: ...

class Compressor:
    def __init__(self, comm: Comm, shapes: list[list[int]], format: str) -> None: ...
    def all_reduce(self, comm: Comm, array: Any) -> None: ...
    def all_reduce_at(self, comm: Comm, address: int, count: int) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def was_finite(self) -> bool: ...
    def residual(self, array: Any) -> None: ...
    def encoder_state(self) -> list[list[float]]: ...
    def restore(self, residual: Any, encoder_state: list[list[float]]) -> None: ...

class Mailbox:
    def __init__(self, rank: int, size: int, all_gather_of: Callable[[int, int, int, bytes], list[bytes]]) -> None: ...
    def send(
        self,
        bytes: tuple[int, int, str],
        to: int,
        tag: int,
        done: Callable[[int, BaseException | None], None],
    ) -> None: ...
    def receive(
        self,
        bytes: tuple[int, int, str],
        source: int | None,
        tag: int,
        done: Callable[[int, BaseException | None], None],
    ) -> None: ...
    def close(self) -> None: ...

def launched(algorithm: str | None = None, tuning: str | PathLike[str] | None = None, timeout: float | None = None) -> Comm: ...
def gathered(
    rank: int,
    size: int,
    all_gather: Callable[[bytes], list[bytes]],
    algorithm: str | None = None,
    tuning: str | PathLike[str] | None = None,
    timeout: float | None = None,
) -> Comm: ...
