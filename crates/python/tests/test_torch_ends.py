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
def refused(call, *words):
    try:
        call()
    except (RuntimeError, ValueError, TypeError) as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(words)

refused(lambda: dist.all_reduce(torch.zeros(2), op=dist.ReduceOp.BOR), "BOR", "Float")
refused(lambda: dist.all_reduce(torch.zeros(2).to_sparse()), "dense")
refused(lambda: dist.all_gather_into_tensor(torch.zeros(3), torch.zeros(2)), "3 elements", "2 blocks of 2")
refused(lambda: dist.all_to_all_single(torch.zeros(3), torch.zeros(3)), "rows")
for wrong in ([torch.zeros(2)] * (size - 1), [torch.zeros(2)] * (size + 1)):
    words = f"{len(wrong)} tensors for {size} ranks"
    refused(lambda: dist.all_gather(wrong, torch.zeros(2)), "all_gather: the output list", words)
    refused(lambda: dist.reduce_scatter(torch.zeros(2), wrong), "reduce_scatter: the input list", words)
    refused(lambda: dist.all_to_all(wrong, wrong), "all_to_all: the output list", words)
    if rank == 0:
        refused(lambda: dist.gather(torch.zeros(2), wrong), "gather: the output list", words)
        refused(lambda: dist.scatter(torch.zeros(2), wrong), "scatter: the input list", words)
if rank == 0:
    refused(lambda: dist.scatter(torch.zeros(2), [torch.zeros(1)] * size), "scatter", "1 elements", "2 elements")
dist.all_reduce(torch.zeros(1))
"""
        + END
    )


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
    try:
        dist.all_reduce(torch.zeros(1))
    except RuntimeError as error:
        refused.append(str(error))

signal.signal(signal.SIGALRM, handle)
for wait in (dist.barrier, lambda: dist.all_reduce(torch.zeros(2), async_op=True).wait()):
    if rank == 1:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
    else:
        time.sleep(1)
    wait()
assert rank == 0 or len(refused) == 2 and all("has interrupted a call" in text for text in refused), refused
"""
        + END
    )


def test_abort_of_a_group_ends_calls_in_flight() -> None:
    ended = run(
        PRELUDE
        + """
if rank == 1:
    work = dist.all_reduce(torch.zeros(2), async_op=True)
    message = dist.irecv(torch.zeros(2), 0)
    dist.distributed_c10d._abort_process_group()
    for one in (work, message):
        try:
            one.wait()
        except RuntimeError as error:
            assert "the process group was aborted" in str(error), error
        else:
            raise AssertionError("a call continues after its group has ended")
else:
    import time
    time.sleep(1)
    dist.barrier()
"""
    )
    assert ended[1].code == 0, ended
    assert ended[0].code == 1 and "the process group was aborted" in ended[0].output, ended
