"""Reductions by functions of the program."""

import pytest
from ranks import PRELUDE, TWO_NODES, check


@pytest.mark.parametrize(("ranks", "network"), [(1, "shm"), (2, "shm"), (3, "shm"), (2, "tcp")])
def test_custom_reduction_keeps_the_order_of_ranks(ranks: int, network: str) -> None:
    outputs = check(
        PRELUDE
        + """
line = np.dtype([("a", "u4"), ("b", "u4")])

def compose(left, right):
    result = np.empty(left.shape, line)
    result["a"] = left["a"] * right["a"]
    result["b"] = left["a"] * right["b"] + left["b"]
    return result

composed = unisono.Reduction("compose", compose, line)
divisors = unisono.Reduction("gcd", np.gcd, np.int64, commutative=True)
assert composed.name == "compose" and "gcd" in repr(divisors)

def lines(of_rank, count):
    result = np.empty(count, line)
    result["a"], result["b"] = 2 * of_rank + 3, np.arange(count) + of_rank
    return result

def product(of_ranks, count):
    result = lines(of_ranks[0], count)
    for other in of_ranks[1:]:
        result = compose(result, lines(other, count))
    return result

for count in (0, 1, 7, 1000, 20000):
    everyone = product(range(size), count)
    own = comm.own_part(count)
    assert (comm.all_reduce(lines(rank, count), composed) == everyone).all()
    assert (comm.reduce_scatter(lines(rank, count), composed) == everyone[own]).all()
    reduced = comm.reduce(lines(rank, count), composed, root=size - 1)
    assert rank < size - 1 or (reduced == everyone).all()
    array = lines(rank, count)
    comm.scan_async(array, composed).wait()
    assert (array == product(range(rank + 1), count)).all()
    numbers = np.arange(count, dtype=np.int64) * 6 * (rank + 1)
    assert (comm.all_reduce(numbers, divisors) == np.arange(count) * 6).all()

latest = unisono.Reduction("latest", np.maximum, "M8[s]", commutative=True)
assert (comm.all_reduce(np.full(3, rank, "M8[s]"), latest) == np.datetime64(size - 1, "s")).all()

if size > 2:
    ring = lambda: comm.all_reduce(lines(rank, 9), composed, algorithm="ring")
    refused(unisono.UnisonoError, ring, "order of ranks")
refused(unisono.UnisonoError, lambda: comm.all_reduce(np.zeros(3), divisors), "reduces elements of i64, and not of f64")
refused(ValueError, lambda: comm.all_reduce(np.zeros(3, "c16"), composed), "and the array has elements of format")
larger = unisono.Reduction("larger", np.maximum, np.uint16, commutative=True)
refused(ValueError, lambda: comm.all_reduce(np.zeros(3, np.int16), larger), "and the array has elements of format")
refused(ValueError, lambda: unisono.Reduction("odd", compose, "V12"), "and not 12")

def nests(left, right):
    group.barrier()

if size > 1:
    group = comm.group(range(size))
    nested = group.all_reduce_async(np.zeros(3), unisono.Reduction("nests", nests, np.float64))
    refused(unisono.UnisonoError, nested.wait, "cannot make another one")

def fails(left, right):
    raise KeyError("on purpose")

if size > 1:
    failing = unisono.Reduction("fails", fails if rank == 0 else np.add, np.float64)
    try:
        comm.all_reduce(np.zeros(3), failing)
    except KeyError as caught:
        assert rank == 0 and "on purpose" in str(caught)
    except unisono.AbortedError as caught:
        assert rank > 0 and "on purpose" in str(caught)
""",
        ranks,
        **(TWO_NODES if network == "tcp" else {}),
    )
    assert all("panicked" not in output for output in outputs), outputs
