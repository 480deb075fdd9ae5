"""Arrays in GPU memory, over the stand-ins for the CUDA driver and NCCL, whose device memory is host memory at other addresses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from ranks import REFUSED, check

# The folder of the stand-ins, which scripts/test builds.
STAND_INS = os.environ.get("UNISONO_STAND_INS")
pytestmark = pytest.mark.skipif(STAND_INS is None, reason="UNISONO_STAND_INS is not set: scripts/test --python builds the stand-ins")

# Arrays with only the attributes that `__cuda_array_interface__` requires.
ARRAYS = """
import ctypes, os
import numpy as np
import unisono

cuda = ctypes.CDLL("libcuda.so")


def driver(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{name}: {code}"


def handle(name, *arguments):
    made = ctypes.c_void_p()
    driver(name, ctypes.byref(made), *arguments)
    return made


class OnGpu:
    def __init__(self, values, stream=None):
        self.values, self.stream = np.ascontiguousarray(values), stream
        self.address = handle("cuMemAlloc_v2", ctypes.c_size_t(max(self.values.nbytes, 1))).value
        data = self.values.ctypes.data_as(ctypes.c_void_p)
        driver("cuMemcpyHtoD_v2", ctypes.c_uint64(self.address), data, ctypes.c_size_t(self.values.nbytes))
        self.__cuda_array_interface__ = {
            "shape": self.values.shape, "typestr": self.values.dtype.str, "data": (self.address, False), "strides": None, "version": 3,
        } | ({} if stream is None else {"stream": stream})

    def read(self):
        values = np.empty_like(self.values)
        data = values.ctypes.data_as(ctypes.c_void_p)
        driver("cuMemcpyDtoH_v2", data, ctypes.c_uint64(self.address), ctypes.c_size_t(values.nbytes))
        return values


comm = unisono.init()
rank, size = comm.rank, comm.size
driver("cuInit", 0)
driver("cuCtxSetCurrent", handle("cuDevicePrimaryCtxRetain", rank))
stream = handle("cuStreamCreate", 1).value
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("stand-ins")
    for library, name in [("cuda", "libcuda.so"), ("nccl", "libnccl.so.2")]:
        (folder / name).symlink_to(Path(str(STAND_INS)) / f"libstand_in_{library}.so")
    yield {"LD_LIBRARY_PATH": str(folder), "UNISONO_NCCL": str(folder / "libnccl.so.2"), "STAND_IN_DEVICES": "4"}


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_collectives_are_ordered_on_the_stream_of_the_array(environment: dict[str, str], ranks: int) -> None:
    program = """
    for dtype in (np.float32, np.float64, np.float16, np.int32, np.int64, np.uint8):
        array = OnGpu(np.full((10, 10), rank + 1, dtype), stream)
        assert comm.all_reduce(array, "sum", label="sum") is array
        comm.all_reduce(array, "max")
        comm.gpu_synchronize(stream)
        assert (array.read() == size * (size + 1) // 2).all(), array.read()
    array = OnGpu(np.arange(100, dtype=np.float32) + rank, stream)
    comm.broadcast(array, size - 1)
    comm.reduce(array, "sum", 0)
    comm.gpu_barrier(stream)
    comm.gpu_synchronize(stream, timeout=10)
    if rank == 0:
        assert (array.read() == (np.arange(100) + size - 1) * size).all()
    own = comm.own_part(100)
    array = OnGpu(np.arange(100, dtype=np.float32) + rank)
    comm._comm.call("all_gather", unisono.on_stream(array, stream))
    comm.gpu_synchronize(stream)
    gathered = array.read()
    assert (gathered[own] == (np.arange(100) + rank)[own]).all()
    for other in range(size):
        assert gathered[100 * other // size + 1] == 100 * other // size + 1 + other

    class Sliced(OnGpu):
        shape = (100,)

        def reshape(self, _):
            return self

        def __getitem__(self, part):
            return part

    assert comm.reduce_scatter(unisono.on_stream(Sliced(np.ones(100, np.float32)), stream)) == own
    # Arrays in host memory still work.
    assert comm.all_reduce(np.ones(10))[0] == size
    """
    check(ARRAYS + _flat(program), ranks, **environment)


def test_unsupported_arrays_are_refused(environment: dict[str, str]) -> None:
    program = """
    def unsupported(call, *words):
        error = refused((ValueError, unisono.UnisonoError), call, *words)
        assert not getattr(error, "is_fatal", False)

    array = OnGpu(np.ones(10, np.float32), stream)
    unsupported(lambda: comm.all_reduce_async(array), "GPU memory", "blocking")
    unsupported(lambda: comm.send(array, 1 - rank), "GPU memory")
    unsupported(lambda: unisono.on_stream(unisono.on_stream(array, stream), stream), "already has a stream")
    unsupported(lambda: comm.all_reduce(OnGpu(np.ones(10, np.complex64))), "c8")
    unsupported(lambda: comm.all_reduce(array, unisono.Reduction("gcd", np.gcd, np.int64, commutative=True)))
    array.__cuda_array_interface__["strides"] = (8,)
    unsupported(lambda: comm.all_reduce(array), "contiguous")
    array.__cuda_array_interface__["strides"] = (4,)
    array.__cuda_array_interface__["data"] = (array.address, True)
    unsupported(lambda: comm.all_reduce(array), "read-only")
    array.__cuda_array_interface__["data"] = (array.values.ctypes.data, False)
    unsupported(lambda: comm.all_reduce(array), "not in the memory of a GPU")
    array.__cuda_array_interface__["data"] = (array.address, False)
    comm.all_reduce(array)
    comm.gpu_synchronize(stream)
    assert (array.read() == size).all()
    """
    check(REFUSED + ARRAYS + _flat(program), 2, **environment)


def test_mismatched_calls_name_both_ranks(environment: dict[str, str]) -> None:
    program = """
    arrays = [OnGpu(np.ones(count, np.float32), stream) for count in (1000, 999)]
    for array in arrays:
        comm.all_reduce(array)
    comm.gpu_synchronize(stream)
    def mismatched():
        for array in arrays if rank == 0 else reversed(arrays):
            comm.all_reduce(array)
        comm.gpu_synchronize(stream)

    refused((unisono.MismatchError, unisono.AbortedError), mismatched, "of 1000 f32", "of 999 f32", "rank 1 called")
    """
    check(REFUSED + ARRAYS + _flat(program), 2, **environment)


def _flat(program: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in program.splitlines())
