"""Signal handlers and other threads of Python during calls on numpy arrays."""

import os
import tempfile

import pytest
from ranks import PRELUDE, Ended, check, finish, start

# Rank 0 runs `in_a_call` during the first call that waits for rank 1: a call lets signal handlers run between
# two polls for the other rank, where the current instruction stays the same. Rank 1 waits until rank 0 lets
# it `go`.
INTERRUPTED = """
import os, signal, threading

place = None

def tick(number, frame):
    global place
    before, place = place, (frame, frame.f_lasti)
    if place == before:
        signal.setitimer(signal.ITIMER_REAL, 0)
        in_a_call()

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

def go():
    os.write(os.open(GO, os.O_RDWR), b"go")

GO = os.environ["UNISONO_FLIGHT_DIR"] + "/go"
if rank == 0:
    signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
else:
    assert os.read(os.open(GO, os.O_RDWR), 2) == b"go"
"""


def run_interrupted(program: str) -> list[Ended]:
    """Runs a program in which a signal interrupts a call of rank 0."""
    with tempfile.TemporaryDirectory() as folder:
        os.mkfifo(f"{folder}/go")
        # Rank 0's message stays in memory until rank 1 reads it.
        with open(f"{folder}/go", "r+b", buffering=0):
            return finish(start(PRELUDE + INTERRUPTED + program, 2, folder))


@pytest.mark.parametrize("count", [1, 1000, 1_000_000])
def test_ctrl_c_ends_calls_that_other_ranks_start_later(count: int) -> None:
    ended = run_interrupted(
        f"""
array, in_a_call = np.ones({count}), interrupt
try:
    comm.all_reduce(array)
except KeyboardInterrupt:
    go()
"""
    )
    assert ended[0].code == 0, ended
    assert "AbortedError" in ended[1].output and "KeyboardInterrupt" in ended[1].output, ended


def test_ctrl_c_at_the_end_of_a_call_ends_the_communicator() -> None:
    ended = run_interrupted(
        """
waits = threading.Event()
in_a_call = waits.set

# Once the handler is done, and so after a poll. The next poll is 50 ms later, when the call is over.
def interrupt_later():
    waits.wait()
    interrupt()
    go()

threading.Thread(target=interrupt_later, daemon=True).start()
try:
    comm.all_reduce(np.ones(1))
except KeyboardInterrupt:
    pass
comm.all_reduce(np.ones(1))
"""
    )
    for end in ended:
        assert end.code == 1 and "AbortedError" in end.output and "KeyboardInterrupt" in end.output, ended


def test_signal_handler_can_set_a_flag_but_make_no_call() -> None:
    ended = run_interrupted(
        """
def in_a_call():
    for call in (comm.barrier, lambda: comm.split(0), comm.shrink, lambda: comm.own_part(4)):
        assert not refused(unisono.UnisonoError, call, "has interrupted a call").is_fatal
    go()

assert comm.all_reduce(np.ones(1))[0] == 2 and comm.all_reduce(np.ones(1))[0] == 2
"""
    )
    assert [end.code for end in ended] == [0, 0], ended


@pytest.mark.parametrize(("act", "cause"), [("comm.fail('preempted')", "preempted"), ("comm.close()", "the communicator is closed")])
def test_signal_handler_can_end_the_call_that_it_interrupts(act: str, cause: str) -> None:
    ended = run_interrupted(
        f"""
def in_a_call():
    {act}

refused(unisono.AbortedError, lambda: comm.all_reduce(np.ones(1)), {cause!r})
go()
"""
    )
    assert [end.code for end in ended] == [0, 0], ended


@pytest.mark.parametrize(("act", "cause"), [("comm.fail('bad values')", "bad values"), ("comm.close()", "the communicator is closed")])
def test_function_of_a_reduction_can_end_the_communicator(act: str, cause: str) -> None:
    check(
        PRELUDE
        + f"""
def add(one, other):
    {act}
    return one + other

def continues():
    comm.all_reduce(np.ones(4), unisono.Reduction("add", add, np.float64, commutative=True))
    comm.barrier()

refused(unisono.AbortedError, continues, {cause!r})
"""
    )


def test_communicator_is_freed_while_a_call_in_flight_needs_the_interpreter() -> None:
    check(
        PRELUDE
        + """
import time
divisors = unisono.Reduction("gcd", np.gcd, np.int64, commutative=True)
comm.barrier()
time.sleep(0.3 * rank)
comm.all_reduce_async(np.array([12, 18]), divisors)
del comm
"""
    )


def test_close_ends_a_call_of_another_thread() -> None:
    check(
        PRELUDE
        + """
import threading, time

group = comm.split(0)

def listen():
    try:
        group.receive(np.zeros(3), 1 - rank)
    except unisono.UnisonoError as error:
        assert "closed" in str(error), error

listener = threading.Thread(target=listen)
listener.start()
time.sleep(0.5)
began = time.monotonic()
group.close()
listener.join()
assert time.monotonic() - began < 20
comm.barrier()
"""
    )


def test_is_done_returns_while_another_thread_waits() -> None:
    check(
        PRELUDE
        + """
import threading, time
comm.barrier()
if rank == 1:
    time.sleep(2)
request = comm.all_reduce_async(np.ones(1))
if rank == 0:
    waits = threading.Thread(target=request.wait_for, args=(60,))
    waits.start()
    time.sleep(0.2)
    began = time.monotonic()
    assert not request.is_done and time.monotonic() - began < 1
    waits.join()
request.wait()
"""
    )


@pytest.mark.parametrize("wait", ["request.wait_for(60)", "comm.close()"])
def test_ctrl_c_ends_waits_for_calls_in_flight(wait: str) -> None:
    check(
        PRELUDE
        + f"""
import os, signal, time
if rank == 1:
    request = comm.all_reduce_async(np.ones(1))
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    began = time.monotonic()
    try:
        {wait}
    except KeyboardInterrupt:
        assert time.monotonic() - began < 3, "the wait does not run signal handlers"
    else:
        raise AssertionError("Ctrl-C is lost")
else:
    time.sleep(5)
os._exit(0)
"""
    )


@pytest.mark.parametrize("kind", ["KeyError", "KeyboardInterrupt"])
def test_exception_of_a_store_is_raised_unchanged(kind: str) -> None:
    check(
        f"""
import unisono

class Store:
    def set(self, key, value):
        pass

    def get(self, key):
        raise {kind}("a key")

try:
    unisono.from_store(Store(), 0, 2)
except {kind} as error:
    assert error.args == ("a key",), error
else:
    raise AssertionError("a world without its other rank")
""",
        1,
    )
