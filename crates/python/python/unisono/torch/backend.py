"""The backend of torch.distributed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch._C._distributed_c10d import Backend, Work
from torch.distributed import DistStoreError, ReduceOp, Store

from ..comm import open_worlds
from ..start import from_store
from .messages import Messages
from .tensors import ELEMENTS, check_reduction, checked, element, give_back, reduction, widened
from .work import Lane

Tensors = list[torch.Tensor]
Output = TypeVar("Output")
Input = TypeVar("Input")

# What a store raises for a key that does not come.
_NOT_THERE = (DistStoreError, RuntimeError)

# PyTorch holds only the part of a backend that is not Python's.
_alive: set[UnisonoBackend] = set()


class UnisonoBackend(Backend):
    """Collectives and messages of torch.distributed on tensors in host memory, among processes.

    Methods have the names that PyTorch calls, some of them twice: an older name and a newer one.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._store, self._timeout = rank, size, store, timeout
        self._world = from_store(store, rank, size, name="unisono", timeout=timeout.total_seconds())
        self._comm = self._world._comm
        self._lane = Lane(is_one_machine="tcp" not in self._comm.transport)
        self._messages = Messages(store, rank, size, timeout)
        self._barriers = self._collectives = 0
        _alive.add(self)
        open_worlds.add(self)

    # What a backend says of itself.

    # As PyTorch's own properties ask a subclass, they would ask themselves.
    supports_coalescing = supports_splitting = supports_shrinking = supports_reconfigure = supports_window = False

    def getBackendName(self) -> str:
        return "unisono"

    name = getBackendName

    def _get_sequence_number_for_group(self) -> int:
        """The number of collectives so far."""
        return self._collectives

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = self._messages.timeout = timeout
        self._comm.set_timeout(timeout.total_seconds())

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Leaves the world, after the calls in flight."""
        self.leave(None)

    def abort(self) -> None:
        """Leaves the world at once: the calls in flight fail, here and on other ranks."""
        self.leave(RuntimeError("the process group was aborted"))

    def leave(self, error: BaseException | None) -> None:
        """Leaves the world; after an error, at once."""
        _alive.discard(self)
        if error is not None:
            # A call in flight holds the communicator, and hears of this.
            self._world.leave(error)
        self._lane.close()
        self._messages.close()
        self._world.close()

    # Collectives. Each checks its arguments at once, and then runs on the lane.

    def _submit(self, name: str, run: Callable[[], Any], result: Tensors, opts: Any) -> Work:
        is_async = getattr(opts, "asyncOp", True)
        self._collectives += 1
        if not torch._C._autograd._profiler_enabled():
            return self._lane.submit(run, result, is_async)
        with torch.profiler.record_function(f"unisono:{name}"):
            return self._lane.submit(run, result, is_async)

    def _move(self, name: str, tensor: torch.Tensor, opts: Any, root: int | None = None, counts: list[int] | None = None) -> None:
        """Makes a collective that moves elements, on a contiguous tensor. `counts` are those of parts that differ."""
        kind, width = element(tensor)
        counts = counts and [count * width for count in counts]
        self._comm.call_at(name, tensor.data_ptr(), tensor.numel() * width, kind, None, root, _seconds(opts), counts)

    def _reduce(
        self, name: str, tensor: torch.Tensor, op: ReduceOp, opts: Any, root: int | None = None, counts: list[int] | None = None
    ) -> None:
        """Makes a collective that reduces, on a tensor that it leaves with the result."""
        buffer = widened(tensor)
        kind = ELEMENTS[buffer.dtype]
        self._comm.call_at(name, buffer.data_ptr(), buffer.numel(), kind, reduction(op), root, _seconds(opts), counts)
        give_back(buffer, tensor)

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:
        op = opts.reduceOp if opts else ReduceOp.SUM
        for tensor in tensors:
            check_reduction(op, tensor)
        places = [checked(tensor) for tensor in tensors]

        def run() -> None:
            for place in places:
                self._reduce("all_reduce", place, op, opts)

        return self._submit("all_reduce", run, tensors, opts)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: Any) -> Work:
        op, root, (tensor,) = opts.reduceOp, opts.rootRank, tensors
        check_reduction(op, tensor)
        place = checked(tensor)

        def run() -> None:
            # Elsewhere than on the root the library leaves the array undefined; PyTorch leaves it as it was.
            target = place if self._rank == root else place.clone()
            self._reduce("reduce", target, op, opts, root)

        return self._submit("reduce", run, tensors, opts)

    def broadcast(self, tensors: Tensors, opts: Any) -> Work:
        root, places = opts.rootRank, [checked(tensor) for tensor in tensors]

        def run() -> None:
            for place in places:
                self._broadcast(place, opts, root)

        return self._submit("broadcast", run, tensors, opts)

    def _broadcast(self, place: torch.Tensor, opts: Any, root: int) -> None:
        buffer = place.contiguous()
        self._move("broadcast", buffer, opts, root)
        give_back(buffer, place)

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        pairs = [
            ([checked(place) for place in self._for_ranks(places, "all_gather", "output")], checked(own))
            for places, own in _pairs(outputs, inputs, "all_gather")
        ]

        def run() -> None:
            for places, own in pairs:
                self._gather_all(places, own, opts)

        return self._submit("all_gather", run, [place for places in outputs for place in places], opts)

    def allgather_coalesced(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        # Here an output is the tensors of one rank, and not one tensor of all ranks.
        for tensors in outputs:
            _pairs(tensors, inputs, "all_gather_coalesced")
        return self.allgather([list(places) for places in zip(*outputs, strict=True)], inputs, opts)

    def _gather_all(self, places: Tensors, own: torch.Tensor, opts: Any) -> None:
        sizes = [place.numel() for place in places]
        buffer = own.new_empty(sum(sizes))
        parts = buffer.split(sizes)
        parts[self._rank].copy_(own.reshape(-1))
        self._move("all_gather", buffer, opts, counts=_unequal(sizes))
        for place, part in zip(places, parts, strict=True):
            place.copy_(part.view(place.shape))

    def all_gather_single(self, output: torch.Tensor, own: torch.Tensor, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [own], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        pairs = [(checked(output), checked(own)) for output, own in _pairs(outputs, inputs, "all_gather_into_tensor")]
        for output, own in pairs:
            self._check_blocks(output, own, "all_gather_into_tensor", "output")

        def run() -> None:
            for output, own in pairs:
                buffer = output.contiguous()
                self._blocks(buffer)[self._rank].copy_(own.reshape(-1))
                self._move("all_gather", buffer, opts)
                give_back(buffer, output)

        return self._submit("all_gather_single", run, outputs, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> Work:
        root, own = opts.rootRank, checked(inputs[0])
        places = self._for_ranks([checked(place) for place in outputs[0]], "gather", "output") if self._rank == root else []

        def run() -> None:
            blocks = own.new_empty((self._size, *own.shape))
            blocks[self._rank] = own
            self._move("gather", blocks, opts, root)
            for place, block in zip(places, blocks, strict=False):
                place.copy_(block.view(place.shape))

        return self._submit("gather", run, places, opts)

    def gather_single(self, output: torch.Tensor, own: torch.Tensor, opts: Any) -> Work:
        places = list(self._blocks(output)) if self._rank == opts.rootRank else []
        return self.gather([places], [own.reshape(-1)], opts)

    gather_into_tensor = gather_single

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> Work:
        root, place = opts.rootRank, checked(outputs[0])
        sources = self._for_ranks([checked(source) for source in inputs[0]], "scatter", "input") if self._rank == root else []
        for source in sources:
            _check_same(source, place, "scatter")

        def run() -> None:
            blocks = place.new_empty((self._size, *place.shape))
            for block, source in zip(blocks, sources, strict=False):
                block.copy_(source.view(place.shape))
            self._move("scatter", blocks, opts, root)
            place.copy_(blocks[self._rank])

        return self._submit("scatter", run, outputs, opts)

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> Work:
        op = opts.reduceOp if opts else ReduceOp.SUM
        pairs = [
            (checked(output), [checked(part) for part in self._for_ranks(parts, "reduce_scatter", "input")])
            for output, parts in _pairs(outputs, inputs, "reduce_scatter")
        ]
        check_reduction(op, outputs[0])

        def run() -> None:
            for output, parts in pairs:
                self._scatter_reduced(output, parts, op, opts)

        return self._submit("reduce_scatter", run, outputs, opts)

    def _scatter_reduced(self, output: torch.Tensor, parts: Tensors, op: ReduceOp, opts: Any) -> None:
        # The library uses its input up: this is a copy.
        buffer = torch.cat([part.reshape(-1) for part in parts])
        sizes = [part.numel() for part in parts]
        self._reduce("reduce_scatter", buffer, op, opts, counts=_unequal(sizes))
        output.copy_(buffer.split(sizes)[self._rank].view(output.shape))

    def reduce_scatter_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [source], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        for output, source in _pairs(outputs, inputs, "reduce_scatter_tensor"):
            self._check_blocks(source, output, "reduce_scatter_tensor", "input")
        return self.reduce_scatter(outputs, [list(self._blocks(source)) for source in inputs], opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def all_to_all_single(
        self, output: torch.Tensor, source: torch.Tensor, output_sizes: list[int], input_sizes: list[int], opts: Any = None
    ) -> Work:
        place, sent = checked(output), checked(source)
        counts = (self._rows(sent, input_sizes, "input"), self._rows(place, output_sizes, "output"))
        self._check_exchange(sent, place, *counts)

        def run() -> None:
            received = place.contiguous()
            self._exchange(sent.contiguous(), received, *counts, opts)
            give_back(received, place)

        return self._submit("all_to_all", run, [output], opts)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        places = self._for_ranks([checked(place) for place in outputs], "all_to_all", "output")
        sources = self._for_ranks([checked(source) for source in inputs], "all_to_all", "input")
        counts = ([source.numel() for source in sources], [place.numel() for place in places])
        self._check_exchange(sources[0], places[0], *counts)

        def run() -> None:
            received = places[0].new_empty(sum(counts[1]))
            self._exchange(torch.cat([source.reshape(-1) for source in sources]), received, *counts, opts)
            for place, part in zip(places, received.split(counts[1]), strict=True):
                place.copy_(part.view(place.shape))

        return self._submit("all_to_all", run, outputs, opts)

    def _check_exchange(self, sent: torch.Tensor, received: torch.Tensor, to: list[int], come: list[int]) -> None:
        if sent.dtype != received.dtype:
            raise TypeError(f"all_to_all: the tensors are of {sent.dtype} and {received.dtype}")
        if to[self._rank] != come[self._rank]:
            raise ValueError(f"all_to_all: rank {self._rank} sends {to[self._rank]} elements to itself, and expects {come[self._rank]}")

    def _exchange(self, sent: torch.Tensor, received: torch.Tensor, to: list[int], come: list[int], opts: Any) -> None:
        """Sends `to[j]` elements to every rank j, and receives `come[i]` from every rank i, on contiguous tensors."""
        kind, width = element(sent)
        to, come = [count * width for count in to], [count * width for count in come]
        self._comm.all_to_all_v_at(sent.data_ptr(), to, received.data_ptr(), come, kind, _seconds(opts))

    def barrier(self, opts: Any = None) -> Work:
        return self._submit("barrier", lambda: self._comm.barrier(None, _seconds(opts)), [], opts)

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        """A barrier in the store: it loses no communicator, and rank 0 says which ranks are missing."""
        self._barriers += 1
        place, timeout = f"unisono/monitored/{self._barriers}", opts.timeout
        if not timeout:
            raise RuntimeError(f"Rank {self._rank} timed out in monitoredBarrier, whose timeout is 0")
        self._store.set(f"{place}/{self._rank}", b"here")
        if self._rank != 0:
            try:
                self._store.wait([f"{place}/go"], timeout)
            except _NOT_THERE as error:
                raise RuntimeError(
                    f"Rank {self._rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0"
                ) from error
            return
        missing = []
        for rank in range(1, self._size):
            try:
                self._store.wait([f"{place}/{rank}"], timeout)
            except _NOT_THERE:
                missing.append(rank)
                if not wait_all_ranks:
                    break
        if missing:
            ranks = f"Rank{'s' if wait_all_ranks else ''} {', '.join(map(str, missing))}"
            raise RuntimeError(f"{ranks} failed to pass monitoredBarrier in {timeout.total_seconds() * 1000:.0f} ms")
        self._store.set(f"{place}/go", b"go")

    # Messages.

    def send(self, tensors: Tensors, to: int, tag: int) -> Work:
        return self._messages.send(checked(tensors[0]), to, tag)

    def recv(self, tensors: Tensors, source: int, tag: int) -> Work:
        return self._messages.receive(checked(tensors[0]), source, tag)

    def recv_anysource(self, tensors: Tensors, tag: int) -> Work:
        return self._messages.receive(checked(tensors[0]), None, tag)

    def _for_ranks(self, tensors: Tensors, call: str, what: str) -> Tensors:
        """A list of a tensor for each rank; raises an error for another length."""
        if len(tensors) != self._size:
            raise ValueError(f"{call}: the {what} list has {len(tensors)} tensors for {self._size} ranks")
        return tensors

    # Tensors as one block for each rank.

    def _blocks(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view(self._size, -1) if tensor.is_contiguous() else tensor.reshape(self._size, -1)

    def _check_blocks(self, whole: torch.Tensor, block: torch.Tensor, call: str, what: str) -> None:
        if whole.dtype != block.dtype:
            raise TypeError(f"{call}: the tensors are of {whole.dtype} and {block.dtype}")
        if whole.numel() != block.numel() * self._size:
            raise ValueError(f"{call}: the {what} has {whole.numel()} elements, which are not {self._size} blocks of {block.numel()}")

    def _rows(self, tensor: torch.Tensor, sizes: list[int], what: str) -> list[int]:
        """The number of elements for each rank: those of so many rows."""
        rows = tensor.shape[0]
        if not sizes:
            if rows % self._size:
                raise ValueError(f"all_to_all: the {what} has {rows} rows, which {self._size} ranks do not divide")
            sizes = [rows // self._size] * self._size
        if len(sizes) != self._size or sum(sizes) != rows:
            raise ValueError(f"all_to_all: the {what} has {rows} rows, and is to be split into {sizes} for {self._size} ranks")
        return [size * (tensor.numel() // rows) if rows else 0 for size in sizes]


def _pairs(outputs: list[Output], inputs: list[Input], call: str) -> list[tuple[Output, Input]]:
    """Outputs with their inputs."""
    if len(outputs) != len(inputs):
        raise ValueError(f"{call}: there are {len(outputs)} outputs and {len(inputs)} inputs")
    return list(zip(outputs, inputs, strict=True))


def _check_same(source: torch.Tensor, target: torch.Tensor, call: str) -> None:
    if (source.dtype, source.numel()) != (target.dtype, target.numel()):
        ours, theirs = (f"{tensor.numel()} elements of {tensor.dtype}" for tensor in (source, target))
        raise ValueError(f"{call}: the tensors have {ours} and {theirs}")


def _unequal(counts: list[int]) -> list[int] | None:
    """The counts, if they differ."""
    return counts if len(set(counts)) > 1 else None


def _seconds(opts: Any) -> float | None:
    """The timeout of a call; None if it has none of its own."""
    timeout = opts.timeout.total_seconds() if opts is not None else 0.0
    return timeout if timeout > 0 else None
