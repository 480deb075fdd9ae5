"""Refusals, failures and interrupts of calls of the backend of torch.distributed."""

import pytest
from ranks import TORCH_PRELUDE as PRELUDE
from ranks import check, run

pytest.importorskip("torch", minversion="2.14")

END = "\ndist.destroy_process_group()\n"


def test_invalid_calls_are_refused() -> None:
    check(
        PRELUDE
        + """
refused(RuntimeError, lambda: dist.all_reduce(torch.zeros(2), op=dist.ReduceOp.BOR), "BOR", "Float")
refused(RuntimeError, lambda: dist.all_reduce(torch.zeros(2).to_sparse()), "dense")
refused(RuntimeError, lambda: dist.all_gather_into_tensor(torch.zeros(3), torch.zeros(2)), "3 elements", "2 blocks of 2")
refused(RuntimeError, lambda: dist.all_to_all_single(torch.zeros(3), torch.zeros(3)), "rows")
for wrong in ([torch.zeros(2)] * (size - 1), [torch.zeros(2)] * (size + 1)):
    words = f"{len(wrong)} tensors for {size} ranks"
    refused(RuntimeError, lambda: dist.all_gather(wrong, torch.zeros(2)), "all_gather: the output list", words)
    refused(RuntimeError, lambda: dist.reduce_scatter(torch.zeros(2), wrong), "reduce_scatter: the input list", words)
    refused(RuntimeError, lambda: dist.all_to_all(wrong, wrong), "all_to_all: the output list", words)
    if rank == 0:
        refused(RuntimeError, lambda: dist.gather(torch.zeros(2), wrong), "gather: the output list", words)
        refused(RuntimeError, lambda: dist.scatter(torch.zeros(2), wrong), "scatter: the input list", words)
if rank == 0:
    refused(RuntimeError, lambda: dist.scatter(torch.zeros(2), [torch.zeros(1)] * size), "scatter", "1 elements", "2 elements")
refused(RuntimeError, lambda: dist.broadcast(torch.zeros(2), size), "the root is 2")
group, pairs, numbers = dist.group.WORLD, torch.zeros(2, dtype=torch.complex64), torch.zeros(4)
refused(RuntimeError, lambda: group.allreduce([numbers, numbers]), "1 tensor", "allreduce_coalesced")
# torch.distributed itself makes pairs of complex numbers for some calls.
mixed = "2 elements of ComplexFloat and 4 elements of Float"
refused(RuntimeError, lambda: group.allgather([[pairs] * size], [numbers]), "all_gather", mixed)
refused(RuntimeError, lambda: group.reduce_scatter([numbers], [[pairs] * size]), "reduce_scatter", mixed)
refused(RuntimeError, lambda: group._allgather_base(torch.cat([pairs, pairs]), numbers), "all_gather_into_tensor", "of ComplexFloat and Float")
refused(RuntimeError, lambda: group.alltoall([pairs] * size, [numbers] * size), "all_to_all", "of Float and ComplexFloat")
refused(RuntimeError, lambda: group.alltoall_base(pairs, numbers, [], []), "all_to_all", "of Float and ComplexFloat")
if rank == 0:
    refused(RuntimeError, lambda: dist.gather(numbers, [pairs] * size), "gather", mixed)
    refused(RuntimeError, lambda: group.scatter([numbers], [[pairs] * size]), "scatter", mixed)
dist.all_reduce(torch.zeros(1))
"""
        + END
    )


def test_types_and_reductions_of_the_program_are_compared() -> None:
    check(
        PRELUDE
        + """
def zeros(first, second):
    count, kind = (first, second)[rank]
    return torch.zeros(count, dtype=kind)

op, shorts = dist.ReduceOp, zeros((2, torch.int16), (4, torch.uint8))
for call, words in (
    (lambda: dist.all_reduce(zeros((2, torch.bool), (2, torch.int32)), group=group), '"Bool" of 2 i32'),
    (lambda: dist.all_reduce(torch.zeros(2).half(), op=(op.AVG, op.SUM)[rank], group=group), '"avg" of 2 f16'),
    (lambda: group.allreduce([zeros((2, torch.complex64), (4, torch.float32))]).wait(), '"ComplexFloat" of 4 f32'),
    (lambda: dist.all_gather_into_tensor(torch.cat([shorts] * 2), shorts, group=group), '"Short" of 8 u8'),
    (lambda: dist.gather(torch.zeros(5000 + rank), [torch.zeros(5000)] * 2 if rank == 0 else None, group=group), '"gather of 5000 Float'),
):
    group = dist.new_group()
    refused(dist.DistBackendError, call, words)
if rank == 0:
    dist.send(shorts, 1)
else:
    refused(dist.DistBackendError, lambda: dist.recv(shorts, 0), '"Short" of 4 u8')
dist.barrier()
"""
        + END
    )


def test_group_may_end_after_a_message_whose_receiver_has_it() -> None:
    ended = run(
        PRELUDE
        + """
for _ in range(20):
    if rank == 0:
        dist.isend(torch.ones(1 << 20), 1)
    else:
        dist.recv(torch.zeros(1 << 20), 0)
dist.barrier()
"""
        + END
    )
    assert all((rank.code, "flight" in rank.output) == (0, False) for rank in ended), ended


def test_missing_rank_is_named_by_all_others() -> None:
    program = PRELUDE.replace(
        "dist.init_process_group(",
        "import datetime\nif rank == 1:\n    os._exit(0)\ndist.init_process_group(timeout=datetime.timedelta(seconds=3), backend=",
    )
    for end in run(program, 3)[::2]:
        assert end.code == 1 and "rank 1 has not joined the process group within 3 s" in end.output, end


def test_mismatch_is_raised_on_both_ranks() -> None:
    for program in (
        "dist.all_reduce(torch.zeros(2 + rank))",
        "dist.all_reduce(torch.zeros(2 + rank), async_op=True).wait()",
    ):
        for end in run(PRELUDE + program):
            assert end.code == 1 and "of 2 f32" in end.output and "of 3 f32" in end.output, end


def test_exception_ends_other_ranks() -> None:
    ended = run(PRELUDE + "if rank == 1:\n    raise KeyError('a batch')\ndist.barrier()")
    assert "KeyError: 'a batch'" in ended[0].output and ended[0].code == 1, ended


WAITS = [
    "dist.barrier()",
    "dist.all_reduce(torch.zeros(2), async_op=True).wait()",
    # The queue's thread carries it out.
    "work = dist.all_reduce(torch.zeros(2), async_op=True); time.sleep(0.1); work.wait()",
    "dist.recv(torch.zeros(2), 0)",
]


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_all_ranks(wait: str) -> None:
    program = f"""
import signal, time
if rank == 1:
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    {wait}
time.sleep(1.5)
dist.barrier()
"""
    ended = run(PRELUDE + program)
    assert ended[1].code != 0 and "KeyboardInterrupt" in ended[1].output, ended
    assert ended[0].code == 1 and "KeyboardInterrupt" in ended[0].output, ended


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("end", ["destroy_process_group", "distributed_c10d._abort_process_group"])
def test_signal_handler_can_end_the_group_whose_call_it_interrupts(end: str, wait: str) -> None:
    program = f"""
import signal, sys, time
if rank == 1:
    signal.signal(signal.SIGALRM, lambda *_: (dist.{end}(), sys.exit(7)))
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    {wait}
time.sleep(1.5)
dist.barrier()
"""
    ended = run(PRELUDE + program)
    assert [end.code for end in ended] == [1, 7] and "rank 1" in ended[0].output, ended


def test_signal_handler_can_set_a_flag_but_make_no_call() -> None:
    check(
        PRELUDE
        + """
import signal, time
refused = []

def handle(*_):
    for call in (lambda: dist.all_reduce(torch.zeros(1)), lambda: dist.isend(torch.zeros(1), 0)):
        try:
            call()
        except RuntimeError as error:
            refused.append(str(error))

def call_of_the_thread_of_the_queue():
    work = dist.all_reduce(torch.zeros(2), async_op=True)
    time.sleep(0.1)
    return work.wait

def message():
    return lambda: dist.send(torch.zeros(2), 1) if rank == 0 else dist.recv(torch.zeros(2), 0)

signal.signal(signal.SIGALRM, handle)
for start in (lambda: dist.barrier, call_of_the_thread_of_the_queue, message):
    if rank == 0:
        time.sleep(1)
    wait = start()
    if rank == 1:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
    wait()
assert rank == 0 or len(refused) == 6 and all("has interrupted a call" in text for text in refused), refused
"""
        + END
    )


def test_abort_of_a_group_ends_calls_in_flight() -> None:
    ended = run(
        PRELUDE
        + """
import threading
other = dist.new_group()
if rank == 1:
    threading.Timer(0.1, other.abort).start()
    refused(RuntimeError, lambda: dist.monitored_barrier(other), "the process group was aborted")
dist.barrier()
if rank == 1:
    work = dist.all_reduce(torch.zeros(2), async_op=True)
    message = dist.irecv(torch.zeros(2), 0)
    dist.distributed_c10d._abort_process_group()
    for one in (work, message):
        refused(RuntimeError, one.wait, "the process group was aborted")
else:
    import time
    time.sleep(1)
    dist.barrier()
"""
    )
    assert ended[1].code == 0, ended
    assert ended[0].code == 1 and "the process group was aborted" in ended[0].output, ended


# Rank 1 is interrupted after half a second.
INTERRUPTED = """
import signal, time
if rank == 1:
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 0.5)
"""


def raises_in_time(call: str) -> str:
    """Returns the end of a program in which Ctrl-C must end a call on rank 1, for which rank 0 does nothing."""
    return f"""
began = time.monotonic()
if rank == 1:
    try:
        {call}
    except KeyboardInterrupt:
        assert time.monotonic() - began < 3, "the call does not run signal handlers"
    else:
        raise AssertionError("Ctrl-C is lost")
else:
    time.sleep(5)
os._exit(0)
"""


def test_exception_of_a_handler_is_raised_by_the_wait_that_it_interrupts() -> None:
    # The wait for the second call runs the first one.
    ended = run(
        PRELUDE
        + """
import signal, sys, time
if rank == 1:
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(7))
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    works = [dist.all_reduce(torch.zeros(count), async_op=True) for count in (2, 3)]
    for work in reversed(works):
        work.wait()
time.sleep(1.5)
dist.barrier()
"""
    )
    assert [end.code for end in ended] == [1, 7], ended


def test_interrupted_work_can_be_waited_for_again() -> None:
    ended = run(
        PRELUDE
        + INTERRUPTED
        + """
if rank == 1:
    work = dist.all_reduce(torch.zeros(2), async_op=True)
    waits = [(work.wait, KeyboardInterrupt), (work.wait, dist.DistBackendError), (work.get_future().wait, RuntimeError)]
    for wait, expected in waits:
        refused(expected, wait)
else:
    time.sleep(1.5)
"""
    )
    assert ended[1].code == 0, ended


# With a delay, the queue's thread carries out the call.
@pytest.mark.parametrize("delay_s", [0, 0.2])
def test_ctrl_c_ends_destroy_process_group(delay_s: float) -> None:
    start = f"""
if rank == 1:
    work = dist.all_reduce(torch.zeros(2), async_op=True)
    time.sleep({delay_s})
"""
    check(PRELUDE + INTERRUPTED + start + raises_in_time("dist.destroy_process_group()"))


def test_ctrl_c_ends_a_call_if_another_thread_has_loaded_the_backend() -> None:
    program = """
import os, threading
import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.FileStore(os.environ["STORE"], size)
starts = threading.Thread(target=lambda: dist.init_process_group("unisono", store=store, rank=rank, world_size=size))
starts.start()
starts.join()
"""
    check(program + INTERRUPTED + raises_in_time("dist.barrier()"))


def test_ctrl_c_ends_the_start_of_a_group() -> None:
    program = """
import os
import torch
import torch.distributed as dist
import unisono.torch

unisono.torch._backend()
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.FileStore(os.environ["STORE"], size)
"""
    check(program + INTERRUPTED + raises_in_time('dist.init_process_group("unisono", store=store, rank=rank, world_size=size)'))


def test_ctrl_c_ends_a_monitored_barrier() -> None:
    check(PRELUDE + INTERRUPTED + raises_in_time("dist.monitored_barrier()"))


def test_receive_in_a_world_of_one_rank_is_refused() -> None:
    check(
        PRELUDE
        + """
refused(RuntimeError, lambda: dist.recv(torch.zeros(1)), "no messages to receive")
"""
        + END,
        1,
    )
