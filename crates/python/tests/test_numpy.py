"""Communicators on numpy arrays."""

import subprocess
import sys

import pytest
from ranks import PRELUDE, REFUSED, TWO_NODES, check, run


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_collectives_give_the_expected_results(ranks: int) -> None:
    check(
        PRELUDE
        + """
for dtype in ("f4", "f8", "f2", "i4", "i8", "u1", "u4", "u8"):
    array = np.full(12, rank + 1, dtype)
    assert comm.all_reduce(array) is array and (array == size * (size + 1) // 2).all(), (dtype, array)
    assert (comm.all_reduce(np.full(5, rank, dtype), "max") == size - 1).all()

for scalar in (np.array(1.0), comm.empty((), "f4"), np.array("2026-11-29", "M8[D]")):
    if scalar.dtype.kind == "f":
        scalar[...] = 1
        assert comm.all_reduce(scalar) is scalar and scalar == size, scalar
    else:
        assert comm.broadcast(scalar, 0) is scalar
everyone = np.arange(size)
array = np.full((size, 3), -1, "i8")
array[rank] = rank
assert (comm.all_gather(array) == everyone[:, None]).all()
assert (comm.broadcast(np.full(7, rank), size - 1) == size - 1).all()
assert (comm.reduce_scatter(np.ones(3 * size, "f4")) == size).all()
assert (comm.scatter(np.repeat(everyone, 2), 0) == rank).all()
reduced = comm.reduce(np.ones(4), "sum", 0)
assert rank != 0 or (reduced == size).all()
array = np.full((size, 2), -1, "i8")
array[rank] = rank
gathered = comm.gather(array, 0)
assert rank != 0 or (gathered == everyone[:, None]).all()
assert (comm.all_to_all(np.full(size, rank)) == everyone).all()
comm.barrier()
requests = [comm.all_reduce_async(np.ones(10_000, "f4")) for _ in range(3)]
for request in requests:
    request.wait()
    assert request.is_done
array = np.zeros(3, "f4")
plans = [comm.plan("all_reduce", array, "sum"), comm.plan("broadcast", np.zeros(9), root=size - 1)]
for step in range(5):
    array[:] = rank + step
    for plan in plans:
        plan.start()
    refused(ValueError, plans[0].start, "started already")
    for plan in plans:
        plan.wait()
    assert (array == size * (size - 1) // 2 + size * step).all(), (step, array)
registered = comm.empty((100, 10), "f8")
registered[:] = rank
comm.all_reduce(registered, "mean")
assert (registered == (size - 1) / 2).all()
assert comm.empty(np.prod((2, 3))).shape == (6,)
words = np.array(["one", "two"] if rank == 0 else ["", ""], "U3")
with_bytes = bytearray(b"abc" if rank == 0 else b"...")
assert comm.broadcast(with_bytes) == b"abc"
""",
        ranks,
    )


@pytest.mark.parametrize(("ranks", "network"), [(2, "shm"), (3, "shm"), (2, "tcp")])
def test_every_type_and_count_matches_numpy(ranks: int, network: str) -> None:
    check(
        PRELUDE
        + """
reduced = ["f2", "f4", "f8", "i4", "i8", "u1", "u4", "u8"]
moved = ["?", "i1", "i2", "u2", ">f4", "c8", "c16", "M8[s]", "S3", "U3", "S700", "V5", "V65535", [("a", "i2"), ("b", "m8[D]")]]
FUNCTIONS = {
    "sum": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply,
    "bit-and": np.bitwise_and, "bit-or": np.bitwise_or, "bit-xor": np.bitwise_xor,
    "logical-and": np.logical_and, "logical-or": np.logical_or, "logical-xor": np.logical_xor,
}
moves = ["all_gather", "gather", "scatter", "broadcast", "all_to_all"]
# An identical seed on all ranks.
random = np.random.default_rng(31)

def values(dtype, count):
    if dtype in reduced:
        # Their sums are exact in any type.
        return random.integers(0, 5, count).astype(dtype)
    dtype = np.dtype(dtype)
    return np.frombuffer(random.bytes(count * dtype.itemsize).replace(b"\\0", b"1"), dtype)

def expected(name, op, arrays, root, counts):
    everything = np.arange(arrays[0].size)
    parts = np.array_split(everything, size) if counts is None else np.split(everything, np.cumsum(counts)[:-1])
    own = parts[rank]
    gathered = np.concatenate([array[part] for array, part in zip(arrays, parts)])
    if name in ("all_gather", "gather"):
        return gathered if name == "all_gather" or rank == root else None
    if name == "all_to_all":
        return np.concatenate([array.reshape(size, -1)[rank] for array in arrays])
    if name in ("broadcast", "scatter"):
        return arrays[root] if name == "broadcast" else arrays[root][own]
    arrays = {"scan": arrays[: rank + 1], "exclusive_scan": arrays[:rank]}.get(name, arrays)
    if not arrays:
        return None
    result = arrays[0]
    for array in arrays[1:]:
        # Pairwise, since a logical reduction of a single rank is the rank's value.
        result = FUNCTIONS[op](result, array).astype(array.dtype)
    return {"reduce": result if rank == root else None, "reduce_scatter": result[own]}.get(name, result)

def try_one(name, dtype, count, is_async):
    ops = [op for op in FUNCTIONS if dtype in reduced and np.issubdtype(dtype, np.integer) or not op.startswith(("bit", "logical"))]
    op, root = random.choice(ops), int(random.integers(size))
    count *= size if name == "all_to_all" else 1
    arrays = [values(dtype, count) for _ in range(size)]
    arguments = {} if name in moves else {"op": str(op)}
    if name in ("broadcast", "gather", "scatter", "reduce"):
        arguments["root"] = root
    counts = None
    if name in ("all_gather", "gather", "scatter", "reduce_scatter") and random.integers(2):
        # Some ranks have nothing.
        weights = random.integers(0, 3, size) + np.eye(size, dtype="i8")[random.integers(size)]
        counts = arguments["counts"] = random.multinomial(count, weights / weights.sum()).tolist()
    own = arrays[rank].copy()
    if is_async:
        getattr(comm, name + "_async")(own, **arguments).wait()
        result = own[comm.own_part(own.size, counts)] if name in ("scatter", "reduce_scatter") else own
    else:
        result = getattr(comm, name)(own, **arguments)
    if name in moves:
        # Only the bytes matter, and numpy changes their order in some copies.
        arrays = [array.view(f"V{array.dtype.itemsize}") for array in arrays]
    correct = expected(name, op, arrays, root, counts)
    if correct is not None:
        assert result.dtype == own.dtype and result.tobytes() == correct.tobytes(), (name, dtype, count, arguments, is_async)

def try_all(names, dtypes):
    for name in names:
        for dtype in dtypes:
            for count in (*range(2 * size + 2), *random.integers(10, 3000, 3)):
                is_large = np.dtype(dtype).itemsize > 1000
                try_one(name, dtype, int(count) % 20 if is_large else int(count), bool(random.integers(2)))

def exchange(dtype):
    counts = random.integers(0, random.choice([2, 20, 900]), (size, size))
    arrays = [values(dtype, int(counts[sender].sum())) for sender in range(size)]
    received = np.empty(int(counts[:, rank].sum()), dtype)
    result = comm.all_to_all_v(arrays[rank], counts[rank].tolist(), received, counts[:, rank].tolist())
    parts = [np.split(array, np.cumsum(counts[sender])[:-1])[rank] for sender, array in enumerate(arrays)]
    correct = np.concatenate([part.view(f"V{part.dtype.itemsize}") for part in parts])
    assert result is received and received.tobytes() == correct.tobytes(), (dtype, counts)

try_all(moves, reduced + moved)
for dtype in reduced + moved:
    if np.dtype(dtype).itemsize < 1000:
        for _ in range(5):
            exchange(dtype)
try_all(["all_reduce", "reduce", "reduce_scatter", "scan", "exclusive_scan"], reduced)

for wrong, words in ((np.zeros(size + 1, "i2"), "equal blocks"), (np.zeros(size, "V65536"), "elements of 65536 bytes")):
    refused(ValueError, lambda: comm.all_to_all(wrong), words)
refused(unisono.UnisonoError, lambda: comm.all_gather(np.zeros(6, "i2") if rank == 0 else np.zeros(6, "c8")), "of 6 [u8; 2]", "of 6 [u8; 8]")
""",
        ranks,
        **(TWO_NODES if network == "tcp" else {}),
    )


def test_messages_and_groups_reach_the_right_ranks() -> None:
    check(
        PRELUDE
        + """
if rank == 0:
    comm.send(np.arange(5.0), 1)
    got = np.zeros(1, "i4")
    assert {comm.receive(got), comm.receive(got)} == {1, 2}
else:
    if rank == 1:
        array = np.zeros(5)
        assert comm.receive(array, 0) == 0 and array[4] == 4
    comm.send(np.array([rank], "i4"), 0)
pair = comm.group([2, 0])
assert (pair is None) == (rank == 1)
if pair:
    assert pair.all_reduce(np.ones(1))[0] == 2 and pair.rank == {2: 0, 0: 1}[rank]
half = comm.split(rank % 2)
assert half.size == (1 if rank == 1 else 2)
""",
        3,
    )


def test_bad_arguments_are_refused() -> None:
    check(
        PRELUDE
        + """
import ctypes

invalid = (ValueError, unisono.UnisonoError)
assert list(comm.all_reduce((ctypes.c_float * 2)(1, 2))) == [2, 4]
refused(invalid, lambda: comm.grow(2**60, "nowhere"), "cannot grow by")
refused(invalid, lambda: comm.all_reduce(np.zeros((4, 4))[:, 1]), "not contiguous")
for kind in ("c8", "M8[D]"):
    refused(invalid, lambda: comm.all_reduce(np.zeros(4, kind)), "no reduction of elements of format")
refused(invalid, lambda: comm.all_reduce(np.zeros(4), "median"), "sum, mean, min, max, product, bit-and, bit-or, bit-xor, logical-and, logical-or, logical-xor")
refused(invalid, lambda: comm.broadcast(np.zeros(4), 2), "the root is 2, in a communicator of 2 ranks")
refused(invalid, lambda: comm.all_gather(np.zeros(3), counts=[1, 1]), "has 3 elements")
refused(invalid, lambda: comm.all_gather(np.zeros(3), counts=[3]), "1 counts of the array")
refused(invalid, lambda: comm.all_reduce_async(np.zeros(3), counts=[1, 2]), "only reduce-scatter")
refused(invalid, lambda: comm.all_to_all_v(np.zeros(3), [1, 2], np.zeros(1), [1, 1]), "array to receive has 1 elements")
refused(invalid, lambda: comm.all_to_all_v(np.zeros(3), [1, 2], np.zeros(5), [2, 3]), "to itself")
refused(invalid, lambda: comm.all_to_all_v(np.zeros(3), [1, 2], np.zeros(2, "i2"), [1, 1]), "different types")
array = np.zeros(3)
refused(invalid, lambda: comm.all_to_all_v(array[:2], [1, 1], array[1:], [1, 1]), "overlap")
comm.all_to_all_v(array[:1], [rank, 1 - rank], array[1:2], [rank, 1 - rank])
refused(invalid, lambda: comm.all_to_all(np.zeros(3)), "not 2 equal blocks")
refused(invalid, lambda: comm.all_reduce(b"1234"), "read-only")
for call in (comm.all_reduce, comm.broadcast, lambda number: comm.receive(number, 1 - rank)):
    refused(invalid, lambda: call(np.mean([1.0, 2.0])), "a scalar of numpy")
assert comm.all_reduce(np.array(1.5)) == 3
refused(invalid, lambda: comm.all_reduce(object()), "has no buffer")
refused(invalid, lambda: comm.broadcast(np.array(["text"], object)), "Python objects")
refused(invalid, lambda: comm.broadcast(np.zeros(1, [("a", "i4"), ("b", "2O")])), "Python objects")
comm.broadcast(np.zeros(1, [("Offset", "i4"), ("O", "u2")]))
refused(invalid, lambda: comm.all_reduce(np.zeros(1), algorithm="fast"), "fast")
refused(invalid, lambda: comm.all_reduce(np.zeros(1), timeout=-1), "above 0")
assert comm.all_reduce(np.ones(1))[0] == 2
comm.close()
refused(invalid, comm.barrier, "closed")
"""
    )


def test_mismatch_is_raised_on_both_ranks() -> None:
    for end in run(PRELUDE + "comm.all_reduce(np.zeros(2 + rank, ['f4', 'i4'][rank]))"):
        assert end.code == 1 and "MismatchError" in end.output, end
        assert "of 2 f32" in end.output and "of 3 i32" in end.output, end


def test_uncaught_exception_is_named_on_the_other_rank() -> None:
    ended = run(PRELUDE + "if rank == 1:\n    raise KeyError('a batch')\ncomm.barrier()")
    assert "AbortedError" in ended[0].output and "KeyError: 'a batch'" in ended[0].output, ended


def test_error_of_a_call_that_ends_a_rank_is_named_on_the_other_rank() -> None:
    failing = "with comm:\n    if rank == 1:\n        comm.all_reduce(np.zeros(1), algorithm='mpi')\n    comm.barrier()"
    ended = run(PRELUDE + failing)
    assert ended[1].code == 1 and "AbortedError" in ended[0].output and "UnisonoError: " in ended[0].output, ended


def test_exit_with_0_is_no_failure() -> None:
    leaving = """
import sys, time
with comm:
    if rank == 1:
        sys.exit(0)
    time.sleep(0.3)
    comm.barrier()
"""
    ended = run(PRELUDE + leaving)
    assert ended[1].code == 0 and "LeftError" in ended[0].output, ended


def test_missing_rank_of_a_store_is_named_after_the_timeout() -> None:
    program = f"""{REFUSED}
import unisono

class Store(dict):
    set, check = dict.__setitem__, lambda self, keys: all(key in self for key in keys)

refused(TimeoutError, lambda: unisono.from_store(Store(), 0, 2, timeout=0.2), "rank 1 has not joined")
"""
    check(program, 1)


def test_call_after_a_rank_has_ended_is_a_left_error() -> None:
    ended = run(PRELUDE + "if rank == 0:\n    comm.barrier()")
    assert ended[1].code == 0 and "LeftError" in ended[0].output and "rank 1 has left" in ended[0].output, ended


def test_killed_rank_raises_an_exception_on_others() -> None:
    program = (
        PRELUDE
        + """
import os, signal, time
comm.barrier()
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
began = time.monotonic()
try:
    comm.barrier()
except unisono.UnisonoError as error:
    assert error.rank == 1 and error.is_fatal, (error, error.rank)
    print(f"after {time.monotonic() - began:.2f} s: {error}")
    assert time.monotonic() - began < 5
"""
    )
    ended = run(program)
    assert ended[0].code == 0 and "after" in ended[0].output, ended


def test_forked_child_does_not_affect_its_parent() -> None:
    check(
        PRELUDE
        + """
import os
if (child := os.fork()) == 0:
    try:
        comm.barrier()
    except ValueError as error:
        assert "forked child" in str(error)
        del comm
        os._exit(0)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
assert comm.all_reduce(np.ones(1))[0] == 2
"""
    )


@pytest.mark.parametrize("dlpack", ["writable", "read-only, as before numpy 2.2"])
def test_collectives_accept_tensors(dlpack: str) -> None:
    pytest.importorskip("torch")
    check(
        f"""{REFUSED}
import os
import numpy as np
import torch
import unisono

if "{dlpack}" != "writable":
    from_dlpack = np.from_dlpack

    def read_only(tensor):
        view = from_dlpack(tensor)
        view.flags.writeable = False
        return view

    np.from_dlpack = read_only

store = torch.distributed.FileStore(os.environ["STORE"], int(os.environ["WORLD_SIZE"]))
comm = unisono.from_store(store, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
for kind in (torch.float32, torch.bfloat16):
    tensor = torch.full((5, 3), comm.rank + 1, dtype=kind)
    assert comm.all_reduce(tensor, "avg") is tensor
    assert (tensor == (comm.size + 1) / 2).all(), tensor
    tensor = torch.full((2 * comm.size,), 3.0, dtype=kind)
    part = comm.reduce_scatter(tensor)
    assert part.dtype is kind and part.tolist() == [3.0 * comm.size] * 2, part
    assert "{dlpack}" != "writable" or tensor.resize_(20).shape == (20,)
tensor = torch.arange(4).bfloat16() if comm.rank == 0 else torch.zeros(4, dtype=torch.bfloat16)
comm.broadcast_async(tensor).wait()
assert tensor.tolist() == [0, 1, 2, 3], tensor
for wrong, words in (
    (torch.zeros(4, 4, dtype=torch.bfloat16).t()[1:], "contiguous"),
    (torch._neg_view(torch.ones(3)), "negated"),
    (torch.ones(3, dtype=torch.bfloat16, requires_grad=True), "gradient"),
):
    refused((ValueError, RuntimeError), lambda: comm.all_reduce(wrong), words)
"""
    )


def test_invalid_sizes_of_the_benchmarks_are_refused() -> None:
    for command in (["bench", "--sizes", "8,x"], ["bench-torch", "--sizes", "0"]):
        ended = subprocess.run([sys.executable, "-m", "unisono", *command], capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 2 and "must be sizes such as" in ended.stderr, ended
