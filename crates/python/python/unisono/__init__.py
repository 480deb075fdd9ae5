"""Collective communication for data-parallel training, on numpy arrays and PyTorch tensors.

    import numpy as np
    import unisono

    comm = unisono.init()                  # under torchrun, mpirun, srun, `unisono launch`, or alone
    gradients = np.ones(1000, np.float32)
    comm.all_reduce(gradients, "mean")     # in place

Ranks are processes. They communicate through shared memory on one machine and over the network between machines, without MPI.
`unisono.torch` is a backend of torch.distributed. PyTorch 2.14 and newer find it automatically: `init_process_group("unisono")`.
"""

from ._unisono import (
    AbortedError,
    LeftError,
    MismatchError,
    Request,
    TimeoutError,
    UnisonoError,
    __version__,
)
from .comm import Comm, Plan, Reduction
from .compressor import Compressor
from .gpu import on_stream
from .start import from_all_gather, from_mpi4py, from_store, init, join
from .waits import wait_all, wait_any

__all__ = [
    "AbortedError",
    "Comm",
    "Compressor",
    "LeftError",
    "MismatchError",
    "Plan",
    "Reduction",
    "Request",
    "TimeoutError",
    "UnisonoError",
    "__version__",
    "from_all_gather",
    "from_mpi4py",
    "from_store",
    "init",
    "join",
    "on_stream",
    "wait_all",
    "wait_any",
]
