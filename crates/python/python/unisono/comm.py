"""Communicators."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypedDict, Unpack

import numpy as np

from . import _unisono
from ._unisono import Request
from .arrays import buffer_of, own_part_of
from .gpu import Streams

Name = Literal["sum", "mean", "min", "max", "product", "bit-and", "bit-or", "bit-xor", "logical-and", "logical-or", "logical-xor"]


class Reduction(_unisono.Reduction):
    """A custom reduction by a function of the program, for the argument `op` of calls.

    `function(left, right)` returns the element-wise reduction of two numpy arrays of type `dtype`, as numpy's `gcd` and `hypot` do. Both
    are read-only and may have any length. Elements have 1, 2, 4, … or 64 bytes, and may be records.

    The function must be associative. Unless it is `commutative`, results are x0 ∘ x1 ∘ … in the order of ranks: algorithms that do not
    keep this order are not selected, and requesting one is an error. All ranks define the same function with the same name. Calls
    with different reductions raise a MismatchError, which names both. The definition is kept until the process ends: define a reduction
    once, not for every call.

    Each of its calls acquires the interpreter's lock, and copies both operands and the result. On short arrays it takes some microseconds
    instead of some hundred nanoseconds, and other Python threads delay the other ranks too. An exception of the function ends the
    communicator: the blocking call raises it, and other ranks get an AbortedError.

        import numpy as np
        import unisono

        divisors = unisono.Reduction("gcd", np.gcd, np.int64, commutative=True)
        comm = unisono.init()
        comm.all_reduce(np.array([12, 18]), divisors)
    """

    def __new__(cls, name: str, function: Callable[[Any, Any], Any], dtype: Any, *, commutative: bool = False) -> Self:
        dtype = np.dtype(dtype)

        def reduce(left: bytes, right: bytes) -> bytes:
            operands = np.frombuffer(left, dtype), np.frombuffer(right, dtype)
            result = np.asarray(function(*operands)).astype(dtype, casting="same_kind", copy=False)
            if result.shape != operands[0].shape:
                raise ValueError(f"the reduction `{name}` must return an array of shape {operands[0].shape}, got {result.shape}")
            return result.tobytes()

        return super().__new__(cls, name, buffer_of(np.empty(1, dtype)), commutative, reduce)


Op = Name | Reduction


class Options(TypedDict, total=False):
    """Options of a call. All but the timeout are identical on all ranks."""

    algorithm: str | None
    label: str | None
    timeout: float | None


class PartOptions(Options, total=False):
    """Options of a call that divides an array among the ranks."""

    counts: Sequence[int] | None


class World(Protocol):
    """A world or process group that a program leaves when it ends."""

    def leave(self, error: BaseException | None) -> None: ...


open_worlds: weakref.WeakSet[World] = weakref.WeakSet()


class Comm(Streams):
    """One rank's handle to a world of ranks, or to a group of them.

    All ranks make the same calls in the same order, on arrays of the same size and type. Different calls raise a MismatchError, which
    names both. Collectives work in place, and return the array: a contiguous numpy array, any object with a buffer, any array that
    numpy.from_dlpack accepts, or a PyTorch tensor of bfloat16. No other thread may change it during a call. Blocking collectives also
    accept arrays in GPU memory: PyTorch tensors, and objects with `__cuda_array_interface__`. They are ordered on the current stream
    (`on_stream`), and the GPU may still be working when they return (`gpu_synchronize`). Calls that only move elements accept any type of
    up to 65535 bytes: complex numbers, dates, strings, records.

    Options of a call: `algorithm`, such as "ring"; `label`, a name of the call in errors; `timeout`, the timeout of waits for another
    rank, in seconds. A reduce-scatter, all-gather, gather or scatter also has `counts`, the number of elements of each rank's part, which
    may be 0 (MPI_Allgatherv). Without `counts`, the parts differ by at most one element. All options except the timeout are identical on
    all ranks.

    Methods that end in `_async` return a Request, and match the blocking methods on other ranks. Do not access the array until `wait` of
    the request has returned. Collectives run one after the other, in the order in which they were started. Messages wait neither for each
    other nor for collectives. `wait_all` and `wait_any` wait for several requests.

    One thread at a time uses a communicator. A forked child cannot use its parent's. Ctrl-C during a call raises KeyboardInterrupt, and
    ends the communicator: other ranks get an AbortedError from the calls that they start after that. Ctrl-C while a request waits raises
    KeyboardInterrupt too, but the call in flight continues. A signal handler that interrupts a call may set a flag, raise an exception, or
    end the call by `fail` or `close`; its other calls of the communicator are refused.
    """

    def __init__(self, handle: _unisono.Comm) -> None:
        self._comm = handle
        self._call = handle.call
        open_worlds.add(self)

    @property
    def rank(self) -> int:
        """The rank of this process, from 0."""
        return self._comm.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._comm.size

    def all_reduce(
        self, array: Any, op: Op = "sum", *, algorithm: str | None = None, label: str | None = None, timeout: float | None = None
    ) -> Any:
        """Leaves the reduction of all arrays on every rank, bitwise identical."""
        self._call("all_reduce", buffer_of(array), op, None, algorithm, label, timeout)
        return array

    def reduce_scatter(self, array: Any, op: Op = "sum", **options: Unpack[PartOptions]) -> Any:
        """Leaves on every rank its own part of the reduction (`own_part`), and returns it; the rest is undefined."""
        self._comm.call("reduce_scatter", buffer_of(array), op, **options)
        return own_part_of(self, array, options.get("counts"))

    def all_gather(self, array: Any, **options: Unpack[PartOptions]) -> Any:
        """Every rank contributes its own part of the array (`own_part`) and ends with all parts."""
        self._comm.call("all_gather", buffer_of(array), **options)
        return array

    def broadcast(self, array: Any, root: int = 0, **options: Unpack[Options]) -> Any:
        """Copies the root's array to every rank."""
        self._comm.call("broadcast", buffer_of(array), root=root, **options)
        return array

    def reduce(self, array: Any, op: Op = "sum", root: int = 0, **options: Unpack[Options]) -> Any:
        """Leaves the reduction of all arrays on the root; the other arrays are undefined."""
        self._comm.call("reduce", buffer_of(array), op, root, **options)
        return array

    def gather(self, array: Any, root: int = 0, **options: Unpack[PartOptions]) -> Any:
        """Every rank contributes its own part of the array (`own_part`), and the root ends with all parts."""
        self._comm.call("gather", buffer_of(array), root=root, **options)
        return array

    def scatter(self, array: Any, root: int = 0, **options: Unpack[PartOptions]) -> Any:
        """Leaves on every rank its own part of the root's array (`own_part`), and returns it; except on the root, the rest is
        undefined."""
        self._comm.call("scatter", buffer_of(array), root=root, **options)
        return own_part_of(self, array, options.get("counts"))

    def all_to_all(self, array: Any, **options: Unpack[Options]) -> Any:
        """Exchanges one block with every rank: block j of rank i becomes block i of rank j. The number of elements is a multiple of
        the number of ranks."""
        self._comm.call("all_to_all", buffer_of(array), **options)
        return array

    def all_to_all_v(
        self,
        sent: Any,
        sent_counts: Sequence[int],
        received: Any,
        received_counts: Sequence[int],
        *,
        label: str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Sends `sent_counts[j]` elements of one array to every rank j, in the order of ranks, and receives `received_counts[i]` from
        every rank i into another array, which it returns (MPI_Alltoallv). Rank j expects as many from this rank. The arrays must not
        overlap."""
        self._comm.all_to_all_v(buffer_of(sent), sent_counts, buffer_of(received), received_counts, label, timeout)
        return received

    def scan(self, array: Any, op: Op = "sum", **options: Unpack[Options]) -> Any:
        """Leaves on every rank the reduction of the arrays of all ranks up to and including itself."""
        self._comm.call("scan", buffer_of(array), op, **options)
        return array

    def exclusive_scan(self, array: Any, op: Op = "sum", **options: Unpack[Options]) -> Any:
        """Leaves on every rank the reduction of the arrays of all ranks before itself; rank 0's array is undefined."""
        self._comm.call("exclusive_scan", buffer_of(array), op, **options)
        return array

    def barrier(self, *, label: str | None = None, timeout: float | None = None) -> None:
        """Returns once all ranks have called it."""
        self._comm.barrier(label, timeout)

    def all_reduce_async(self, array: Any, op: Op = "sum", **options: Unpack[Options]) -> Request:
        """The non-blocking form of `all_reduce`."""
        return self._comm.start("all_reduce", buffer_of(array), op, **options)

    def reduce_scatter_async(self, array: Any, op: Op = "sum", **options: Unpack[PartOptions]) -> Request:
        """The non-blocking form of `reduce_scatter`: the result is at `own_part` of the array."""
        return self._comm.start("reduce_scatter", buffer_of(array), op, **options)

    def scan_async(self, array: Any, op: Op = "sum", **options: Unpack[Options]) -> Request:
        """The non-blocking form of `scan`."""
        return self._comm.start("scan", buffer_of(array), op, **options)

    def exclusive_scan_async(self, array: Any, op: Op = "sum", **options: Unpack[Options]) -> Request:
        """The non-blocking form of `exclusive_scan`."""
        return self._comm.start("exclusive_scan", buffer_of(array), op, **options)

    def all_gather_async(self, array: Any, **options: Unpack[PartOptions]) -> Request:
        """The non-blocking form of `all_gather`."""
        return self._comm.start("all_gather", buffer_of(array), **options)

    def broadcast_async(self, array: Any, root: int = 0, **options: Unpack[Options]) -> Request:
        """The non-blocking form of `broadcast`."""
        return self._comm.start("broadcast", buffer_of(array), root=root, **options)

    def reduce_async(self, array: Any, op: Op = "sum", root: int = 0, **options: Unpack[Options]) -> Request:
        """The non-blocking form of `reduce`."""
        return self._comm.start("reduce", buffer_of(array), op, root, **options)

    def gather_async(self, array: Any, root: int = 0, **options: Unpack[PartOptions]) -> Request:
        """The non-blocking form of `gather`."""
        return self._comm.start("gather", buffer_of(array), root=root, **options)

    def scatter_async(self, array: Any, root: int = 0, **options: Unpack[PartOptions]) -> Request:
        """The non-blocking form of `scatter`: the result is at `own_part` of the array."""
        return self._comm.start("scatter", buffer_of(array), root=root, **options)

    def all_to_all_async(self, array: Any, **options: Unpack[Options]) -> Request:
        """The non-blocking form of `all_to_all`."""
        return self._comm.start("all_to_all", buffer_of(array), **options)

    def plan(self, name: str, array: Any, op: Op | None = None, root: int | None = None, **options: Unpack[PartOptions]) -> Plan:
        """Plans a collective on an array, such as `plan("all_reduce", array, "sum")`, to start it many times (MPI_Allreduce_init). All
        ranks plan the same call."""
        return Plan(self._comm, self._comm.plan(name, buffer_of(array), op, root, **options))

    def send(self, array: Any, to: int, *, tag: int = 0, label: str | None = None, timeout: float | None = None) -> None:
        """Sends an array to rank `to`, which receives one of the same size and type with the same tag (MPI_Send)."""
        self._comm.send(buffer_of(array), to, tag, label, timeout)

    def receive(
        self,
        array: Any,
        source: int | None = None,
        *,
        tag: int = 0,
        label: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Receives the earliest message with this tag from rank `source` or, by default, from any rank. Returns the rank of the sender
        (MPI_Recv)."""
        return self._comm.receive(buffer_of(array), source, tag, label, timeout)

    def send_async(self, array: Any, to: int, *, tag: int = 0, label: str | None = None, timeout: float | None = None) -> Request:
        """The non-blocking form of `send` (MPI_Isend). Any number of messages may be in flight, in any order."""
        return self._comm.send_async(buffer_of(array), to, tag, label, timeout)

    def receive_async(self, array: Any, source: int, *, tag: int = 0, label: str | None = None, timeout: float | None = None) -> Request:
        """The non-blocking form of `receive` (MPI_Irecv), from a given rank."""
        return self._comm.receive_async(buffer_of(array), source, tag, label, timeout)

    def split(self, color: int | None, key: int = 0) -> Comm | None:
        """Splits the ranks into one communicator per color, numbered by key and, among equal keys, by their rank here. A rank with the
        color None is in no group, and gets None. All ranks call it."""
        group = self._comm.split(color, key)
        return None if group is None else Comm(group)

    def group(self, ranks: Sequence[int]) -> Comm | None:
        """Creates a communicator of these ranks, numbered in this order; other ranks get None. All ranks call it with the same list."""
        group = self._comm.group(list(ranks))
        return None if group is None else Comm(group)

    def grow(self, more: int, address: str | os.PathLike[str]) -> Comm:
        """Returns a communicator of these ranks and of `more` processes, which call `unisono.join` with the same address. All call it.

        The address is the path of a Unix socket, or "host:port" of rank 0's machine for processes of any machine. A port that other
        machines can reach needs UNISONO_SECRET, identical for all. The ranks keep their numbers, and those that join follow. This
        communicator remains usable, even if the processes do not join in time.
        """
        return Comm(self._comm.grow(more, address))

    def shrink(self, *, minimum_ranks: int | None = None) -> Comm:
        """Returns a communicator of the ranks that are left, after an error that `is_fatal`, and closes this one. All of them call it. They
        keep their order and get new numbers (`former_ranks`). Further ranks may fail meanwhile.

        Ranks whose process has ended or that have closed their communicator are excluded. If a live rank does not call this in time, the
        others get a TimeoutError, which names it and reports whether its process is stopped. When the first rank calls this, ranks in a
        call get an AbortedError, and can call it too. Ranks connected by MPI cannot shrink.

        On several machines, the ranks that are left continue only if they are the majority of those that may be alive. Otherwise the error
        has the code `"partitioned"`. `minimum_ranks`, identical on all ranks, replaces this rule by the number of ranks that must be left.
        If the network is partitioned and both sides have this number of ranks, both continue.

        The new communicator inherits the algorithm and the timeout. Groups of the old one are lost. Calls treat arrays from its `empty` as
        any other array.

            step, weights = 0, initial_weights()
            while step < 1000:
                try:
                    gradients = comm.all_reduce(compute(weights, step), "mean")
                    weights, step = weights - rate * gradients, step + 1
                except unisono.UnisonoError as error:
                    if not error.is_fatal:
                        raise
                    comm = comm.shrink()
                    # Some ranks may have completed the step. All continue from the state of rank 0.
                    with contextlib.suppress(unisono.UnisonoError):
                        first = comm.broadcast(np.array([step])), comm.broadcast(weights.copy())
                        step, weights = int(first[0][0]), first[1]
        """
        return Comm(self._comm.shrink(minimum_ranks))

    @property
    def former_ranks(self) -> list[int]:
        """The rank of each process before `shrink`. Empty if `shrink` did not return this communicator."""
        return self._comm.former_ranks

    def own_part(self, count: int, counts: Sequence[int] | None = None) -> slice:
        """Returns the part of an array of `count` elements that belongs to this rank in a reduce-scatter, scatter, gather or all-gather
        with these `counts`."""
        return self._comm.own_part(count, counts)

    def empty(self, shape: int | Sequence[int], dtype: Any = np.float32) -> np.ndarray:
        """Returns an array of zeros in registered memory, in which collectives need no copy. This is a local operation."""
        shape, dtype = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape), np.dtype(dtype)
        count = math.prod(map(int, shape))
        memory = self._comm.memory(count * dtype.itemsize)
        return np.frombuffer(memory, dtype, count).reshape(shape) if count else np.empty(shape, dtype)

    def set_algorithm(self, name: str) -> None:
        """Sets the algorithm of all later calls, such as "ring", or "auto". All ranks set the same."""
        self._comm.set_algorithm(name)

    def set_timeout(self, timeout: float) -> None:
        """Sets the timeout of waits for another rank, in seconds."""
        self._comm.set_timeout(timeout)

    def fail(self, cause: str) -> None:
        """Declares that this rank cannot continue: other ranks get an AbortedError with the cause instead of waiting for it."""
        self._comm.fail(cause)

    def close(self) -> None:
        """Leaves the world: other ranks that wait for this one get a LeftError. Another thread's call fails after a second."""
        self._comm.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.leave(value)

    def leave(self, error: BaseException | None) -> None:
        """Closes the communicator. Other ranks are informed of an error that ends this one."""
        # It may already be closed or lost, or be the copy of a forked child.
        with contextlib.suppress(Exception):
            if _is_failure(error):
                self.fail(f"{type(error).__name__}: {error}")
            self.close()

    def __repr__(self) -> str:
        return repr(self._comm)


class Plan:
    """A persistent collective on one array. A short all-reduce takes less time than without a plan."""

    def __init__(self, comm: _unisono.Comm, handle: _unisono.Plan) -> None:
        self._comm, self._handle = comm, handle

    def start(self) -> None:
        """Starts the call. Do not access the array until `wait` has returned."""
        self._comm.start_plan(self._handle)

    def wait(self) -> None:
        """Waits until the call is done; the array then has the result."""
        self._comm.wait_plan(self._handle)


def _is_failure(error: BaseException | None) -> bool:
    """Returns whether an exception that ends a rank is news for the others, which know of fatal errors already."""
    if isinstance(error, SystemExit):
        return error.code not in (None, 0)
    return not (error is None or isinstance(error, GeneratorExit) or (isinstance(error, _unisono.UnisonoError) and error.is_fatal))


@atexit.register
def _leave_all() -> None:
    # The exception that ends the program, if one does. An interactive session keeps the last one that it has reported.
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    for world in list(open_worlds):
        world.leave(error)
