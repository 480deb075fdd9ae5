"""Messages: with tags on numpy arrays, between machines, and between ranks of torch.distributed."""

from ctypes.util import find_library

import pytest
from ranks import PRELUDE, TORCH_PRELUDE, TWO_NODES, check


def test_messages_match_by_tag_in_any_order() -> None:
    check(
        PRELUDE
        + """
other = 1 - rank
places = [np.zeros(1 << 15) for _ in range(50)]
receives = [comm.receive_async(place, other, tag=tag) for tag, place in enumerate(places)]
sends = [comm.send_async(np.full(1 << 15, tag + 100.0 * rank), other, tag=tag) for tag in reversed(range(50))]
tags = list(range(50))
while receives:
    tag = tags.pop(unisono.wait_any(receives))
    assert (places[tag] == tag + 100 * other).all()
unisono.wait_all(sends)
comm.send_async(np.arange(3.0), other, tag=8).wait()
comm.send(np.arange(2.0), other, tag=7)
got = np.zeros(2)
assert comm.receive(got, other, tag=7) == other and got[1] == 1
got = np.zeros(3)
assert comm.receive(got, tag=8) == other and got[2] == 2
comm.barrier()
refused((unisono.TimeoutError, unisono.AbortedError), lambda: comm.receive(got, other, tag=9, timeout=0.2), "with tag 9")
refused(ValueError, lambda: unisono.wait_any([]), "no request")
""",
        2,
    )


def test_missing_message_of_torch_is_a_timeout() -> None:
    pytest.importorskip("torch", minversion="2.14")
    check(
        TORCH_PRELUDE
        + """
from datetime import timedelta

groups = [dist.new_group(timeout=timedelta(seconds=1)) for _ in range(2)]
if rank == 0:
    for group, source, said in ((groups[0], 1, "receive #0: waited 1.0 s for rank 1"), (groups[1], None, "receive-any #0")):
        refused(Exception, lambda: dist.recv(torch.zeros(2), source, group=group), said)
dist.barrier()
dist.destroy_process_group()
"""
    )


def test_finished_messages_of_torch_release_their_memory() -> None:
    pytest.importorskip("torch", minversion="2.14")
    check(
        TORCH_PRELUDE
        + """
import ctypes

# M_MMAP_THRESHOLD: otherwise glibc keeps freed memory of this size in its heap.
assert ctypes.CDLL(None).mallopt(-3, 131072) == 1

def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

for count in range(41):
    if rank == 0:
        dist.send(torch.ones(4 << 20), 1)
    else:
        dist.recv(torch.zeros(4 << 20), 0)
    if count == 0:
        before = resident_mib()
assert resident_mib() - before < 100, (before, resident_mib())
if rank == 1:
    last = torch.zeros(40 << 20)
    work = dist.irecv(last, 0)
    work.wait()
    before = resident_mib()
    # The tensor's memory, although the work is kept.
    del last
    assert before - resident_mib() > 100, (before, resident_mib())
else:
    dist.send(torch.ones(40 << 20), 1)
dist.barrier()
dist.destroy_process_group()
"""
    )


@pytest.mark.parametrize("network", ["tcp", "ucx"])
def test_all_reduce_uses_the_network_between_machines(network: str) -> None:
    if network == "ucx" and find_library("ucp") is None:
        pytest.skip("libucp is not installed")
    settings = {**TWO_NODES, "UNISONO_NETWORK": network}
    check(PRELUDE + f"assert comm._comm.transport == '{network}' and (comm.all_reduce(np.ones(100_000)) == 2).all()", 2, **settings)
