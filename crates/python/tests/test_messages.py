"""Messages with tags on numpy arrays."""

from ranks import check


def test_messages_with_tags_in_any_order() -> None:
    check(
        """
import numpy as np
import unisono

comm = unisono.init()
rank, size = comm.rank, comm.size
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
try:
    comm.receive(got, other, tag=9, timeout=0.2)
except (unisono.TimeoutError, unisono.AbortedError) as error:
    assert "with tag 9" in str(error), error
else:
    raise AssertionError("a message that no rank sends was received")
try:
    unisono.wait_any([])
except ValueError as error:
    assert "no request" in str(error)
""",
        2,
    )
