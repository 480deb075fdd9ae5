"""Worlds that lose ranks and continue with the others."""

from __future__ import annotations

import pytest
from ranks import PRELUDE, run


@pytest.mark.parametrize("ranks", [2, 4])
def test_survivors_continue_after_a_kill(ranks: int) -> None:
    program = (
        PRELUDE
        + """
import os, signal
assert comm.former_ranks == []
step = 0
while step < 10:
    if step == 5 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        ones = comm.all_reduce(np.ones(1000))
    except unisono.UnisonoError as error:
        assert error.is_fatal and error.rank == 1, error
        failed, comm = comm, comm.shrink()
        step = int(comm.all_reduce(np.array([step]), "min")[0])
        continue
    assert (ones == comm.size).all()
    step += 1
assert (comm.size, comm.former_ranks) == (size - 1, [0, *range(2, size)]), comm
refused(unisono.UnisonoError, failed.barrier, "the communicator is closed")
print("went on")
"""
    )
    ended = run(program, ranks)
    for rank, end in enumerate(ended):
        assert (end.code == 0 and "went on" in end.output) or rank == 1, ended


def test_rank_that_does_not_shrink_is_named() -> None:
    program = (
        PRELUDE
        + """
import time
comm.set_timeout(1)
if rank == 1:
    time.sleep(4)
else:
    try:
        comm.shrink()
    except unisono.TimeoutError as error:
        assert error.rank == 1 and "is alive" in str(error), error
        # Programs may catch the built-in TimeoutError.
        assert isinstance(error, TimeoutError) and isinstance(error, unisono.UnisonoError), type(error).__mro__
        print("named")
"""
    )
    ended = run(program, 2)
    assert ended[0].code == 0 and "named" in ended[0].output, ended


def test_program_can_continue_after_its_own_failure() -> None:
    program = (
        PRELUDE
        + """
if rank == 0:
    comm.fail("on purpose")
try:
    comm.barrier()
except unisono.AbortedError as error:
    assert "on purpose" in str(error), error
comm = comm.shrink()
assert comm.all_reduce(np.ones(1))[0] == size
print("went on")
"""
    )
    for end in run(program, 2):
        assert end.code == 0 and "went on" in end.output, end


def test_fewer_ranks_than_the_minimum_do_not_continue() -> None:
    program = (
        PRELUDE
        + """
import os, signal
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    comm.barrier()
except unisono.UnisonoError:
    pass
few = "2 ranks are left, fewer than the minimum, 3"
assert refused(unisono.UnisonoError, lambda: comm.shrink(minimum_ranks=3), few).code == "failed"
print("refused")
"""
    )
    ended = run(program, 3)
    for rank, end in enumerate(ended):
        assert (end.code == 0 and "refused" in end.output) or rank == 1, ended


def test_new_process_joins_a_world() -> None:
    program = (
        PRELUDE
        + """
import socket, subprocess, sys
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = np.array([free.getsockname()[1]])
address = f"127.0.0.1:{comm.broadcast(port)[0]}"
joins = "import numpy as np, unisono; comm = unisono.join({!r}); print('joined', comm.rank, comm.all_reduce(np.ones(1))[0])"
joining = subprocess.Popen([sys.executable, "-c", joins.format(address)]) if rank == 1 else None
grown = comm.grow(1, address)
assert (grown.size, grown.rank, grown.all_reduce(np.ones(1))[0], comm.all_reduce(np.ones(1))[0]) == (3, rank, 3, 2)
assert joining is None or joining.wait() == 0
print("grown")
"""
    )
    ended = run(program, 2)
    assert all(end.code == 0 and "grown" in end.output for end in ended) and "joined 2 3" in ended[1].output, ended
