"""Tensors of PyTorch at addresses that are not aligned for their elements, or that share memory."""

from ranks import check
from test_torch import END, PRELUDE


def test_tensors_may_have_any_address() -> None:
    check(
        PRELUDE
        + """
def misaligned(values):
    packet = bytearray(2) + bytearray(values.numpy().tobytes())
    tensor = torch.frombuffer(packet, dtype=values.dtype, offset=2)
    assert tensor.data_ptr() % tensor.element_size() != 0
    return tensor

for count in (3, 9000):
    ones, own = torch.ones(count), torch.full((count,), float(rank))
    all_ranks = [torch.full((count,), float(other)) for other in range(size)]
    total = misaligned(ones)
    dist.all_reduce(total)
    assert (total == size).all()
    last = misaligned(own)
    dist.broadcast(last, size - 1)
    assert (last == size - 1).all()
    gathered = misaligned(torch.zeros(count * size))
    dist.all_gather_into_tensor(gathered, misaligned(own))
    assert torch.equal(gathered, torch.cat(all_ranks))
    exchanged = misaligned(torch.zeros(count * size))
    dist.all_to_all_single(exchanged, misaligned(own.repeat(size)))
    assert torch.equal(exchanged, torch.cat(all_ranks))
    part = misaligned(torch.zeros(count))
    dist.scatter(part, [misaligned(values) for values in all_ranks] if rank == 0 else None)
    assert torch.equal(part, own)
    parts = [misaligned(torch.zeros(count)) for _ in range(size)]
    dist.gather(part, parts if rank == 0 else None)
    assert rank != 0 or all(map(torch.equal, parts, all_ranks))
    if rank == 0:
        dist.send(part, 1)
    elif rank == 1:
        dist.recv(part, 0)
        assert (part == 0).all()
    # The tensor of the root is one of those that it sends or receives.
    shared = torch.cat(all_ranks).view(size, count)
    dist.scatter(shared[1] if rank == 0 else part, list(shared) if rank == 0 else None)
    assert rank != 1 or (part == 1).all()
"""
        + END,
        3,
    )
