"""The backend of torch.distributed. Skipped with a reason if PyTorch is not installed or too old."""

import pytest
from ranks import IS_DEEP, check
from ranks import TORCH_PRELUDE as PRELUDE

torch = pytest.importorskip("torch", minversion="2.14")

END = "\ndist.destroy_process_group()\n"


@pytest.mark.parametrize("ranks", [1, 2, 3, 4] if IS_DEEP else [1, 3])
def test_collectives_give_the_expected_results(ranks: int) -> None:
    check(
        PRELUDE
        + """
everyone = torch.arange(size)
kinds = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
for kind in kinds:
    for shape in ((), (5,), (3, 4)):
        tensor = torch.full(shape, rank + 1, dtype=kind)
        dist.all_reduce(tensor)
        assert (tensor == size * (size + 1) // 2).all(), (kind, shape, tensor)
    tensor = torch.full((4, 6), rank, dtype=kind)[:, ::2]
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    assert (tensor == size - 1).all(), "not contiguous"
for kind in (torch.float8_e4m3fn, torch.float8_e5m2fnuz):
    tensor = torch.full((3,), rank + 1.0).to(kind)
    dist.all_reduce(tensor)
    assert (tensor.float() == size * (size + 1) / 2).all(), (kind, tensor)
tensor = torch.tensor([rank == 0, True])
dist.all_reduce(tensor, op=dist.ReduceOp.MIN)
assert tensor.tolist() == [size == 1, True]
tensor = torch.full((3,), complex(rank, 1))
dist.all_reduce(tensor)
assert (tensor == complex(size * (size - 1) / 2, size)).all()
for op, expected in ((dist.ReduceOp.BOR, (1 << size) - 1), (dist.ReduceOp.BXOR, (1 << size) - 1), (dist.ReduceOp.BAND, int(size == 1))):
    tensor = torch.tensor([1 << rank], dtype=torch.int16)
    dist.all_reduce(tensor, op=op)
    assert tensor == expected, op
tensor = torch.full((2,), float(rank))
dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
assert (tensor == (size - 1) / 2).all()
# Their sum is too large for the type.
large = torch.full((size,), 40000.0, dtype=torch.float16)
own = torch.empty(1, dtype=torch.float16)
dist.reduce_scatter_tensor(own, large, op=dist.ReduceOp.AVG)
dist.all_reduce(large, op=dist.ReduceOp.AVG)
assert ((large - 40000).abs() <= 64).all() and ((own - 40000).abs() <= 64).all(), (large, own)

tensor = torch.full((3,), rank)
dist.broadcast(tensor, size - 1)
assert (tensor == size - 1).all()
tensor = torch.ones(1).expand(3) if rank == 0 else torch.empty(3)
dist.broadcast(tensor, 0)
assert (tensor == 1).all(), "the root only reads"
refused(RuntimeError, lambda: dist.all_reduce(torch.ones(1).expand(3)), "share memory")
tensor = torch.full((3,), rank)
dist.reduce(tensor, 0)
assert (tensor == (size * (size - 1) // 2 if rank == 0 else rank)).all()
outputs = [torch.zeros(2, dtype=torch.int64) for _ in range(size)]
dist.all_gather(outputs, torch.full((2,), rank))
assert torch.stack(outputs)[:, 0].equal(everyone)
output = torch.zeros(2 * size, dtype=torch.int16)
dist.all_gather_into_tensor(output, torch.full((2,), rank, dtype=torch.int16))
assert output[::2].equal(everyone.to(torch.int16))
outputs = [torch.zeros(other + 1) for other in range(size)]
dist.all_gather(outputs, torch.full((rank + 1,), float(rank)))
assert all((tensor == other).all() for other, tensor in enumerate(outputs)), "of different sizes"
outputs = [torch.zeros(2, dtype=torch.int64) for _ in range(size)] if rank == 0 else None
dist.gather(torch.full((2,), rank), outputs, dst=0)
assert rank != 0 or torch.stack(outputs)[:, 0].equal(everyone)
output = torch.zeros(2, dtype=torch.int64)
dist.scatter(output, [torch.full((2,), other) for other in range(size)] if rank == 0 else None, src=0)
assert (output == rank).all()
if hasattr(dist, "gather_single"):
    for output in (torch.zeros(2 * size, dtype=torch.int16), torch.zeros(2 * size, 2, dtype=torch.int16)[:, 0]):
        dist.gather_single(torch.full((2,), rank, dtype=torch.int16), output if rank == 0 else None, dst=0)
        assert rank != 0 or output[::2].equal(everyone.to(torch.int16))
# Long ones, of which some are not contiguous.
longs = [torch.zeros(2, 1 << 18)[:, ::2] if rank == other else torch.zeros(2, 1 << 17) for other in range(size)]
dist.gather(torch.full((2, 1 << 17), float(rank)), longs if rank == size - 1 else None, dst=size - 1)
assert rank != size - 1 or all((tensor == other).all() for other, tensor in enumerate(longs)), "long"
output = torch.zeros(1 << 18, 2)[:, 0]
dist.scatter(output, [torch.full((1 << 18,), float(other)) for other in range(size)] if rank == 0 else None, src=0)
assert (output == rank).all(), "long"
output = torch.zeros(3)
dist.reduce_scatter(output, [torch.full((3,), float(other)) for other in range(size)])
assert (output == rank * size).all()
for kind in (torch.float32, torch.complex64):
    output = torch.zeros(rank + 1, dtype=kind)
    dist.reduce_scatter(output, [torch.full((other + 1,), other, dtype=kind) for other in range(size)])
    assert (output == rank * size).all(), "of different sizes"
output = torch.zeros(3)
dist.reduce_scatter_tensor(output, torch.arange(size).repeat_interleave(3).float())
assert (output == rank * size).all()
output = torch.zeros(size, dtype=torch.int64)
dist.all_to_all_single(output, torch.full((size,), rank))
assert output.equal(everyone)
tensor = torch.arange(12 << 17) + rank
dist.all_to_all_single(expected := torch.empty_like(tensor), tensor.clone())
dist.all_to_all_single(tensor, tensor)
assert tensor.equal(expected), "in place"
for dtype in (torch.float32, torch.int16):
    # Rank i sends i + j rows of two elements to rank j.
    counts = [rank + other for other in range(size)]
    output = torch.zeros(sum(counts), 2, dtype=dtype)
    dist.all_to_all_single(output, torch.full((sum(counts), 2), rank, dtype=dtype), counts, counts)
    expected = torch.cat([torch.full((rank + other, 2), other, dtype=dtype) for other in range(size)])
    assert output.equal(expected), (output, expected)
outputs = [torch.empty(rank + 1) for _ in range(size)]
dist.all_to_all(outputs, [torch.full((other + 1,), float(rank)) for other in range(size)])
assert all((tensor == other).all() for other, tensor in enumerate(outputs)), "of different sizes"
dist.barrier()
dist.monitored_barrier()
dist.group.WORLD.monitored_barrier()
objects = [None] * size
dist.all_gather_object(objects, {"rank": rank})
assert objects == [{"rank": other} for other in range(size)]
objects = ["text", 3] if rank == 0 else [None, None]
dist.broadcast_object_list(objects)
assert objects == ["text", 3]
"""
        + END,
        ranks,
    )


def test_several_works_may_be_in_flight() -> None:
    check(
        PRELUDE
        + """
tensors = [torch.full((1000,), float(index)) for index in range(5)]
works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
if rank == 0:
    # A message between ranks with different collectives in flight.
    dist.send(torch.ones(1 << 18), 1)
else:
    dist.recv(torch.zeros(1 << 18), 0)
for index, (work, tensor) in enumerate(zip(works, tensors)):
    work.wait()
    assert work.is_completed() and work.get_future().value()[0] is not None
    assert (tensor == size * index).all()
with dist._coalescing_manager():
    for tensor in tensors:
        dist.all_reduce(tensor)
assert (tensors[4] == size * size * 4).all()
"""
        + END
    )


def test_messages_match_by_sender_and_tag() -> None:
    check(
        PRELUDE
        + """
following, before = (rank + 1) % size, (rank - 1) % size
for count in (0, 1, 1000, 1 << 20):
    received = torch.empty(count)
    operations = [dist.P2POp(dist.isend, torch.full((count,), float(rank)), following), dist.P2POp(dist.irecv, received, before)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert (received == before).all()
if rank == 0:
    first, second = torch.zeros(3), torch.zeros(3)
    works = [dist.irecv(second, 1, tag=7), dist.irecv(first, 1, tag=5)]
    for work in works:
        work.wait()
    assert first[0] == 5 and second[0] == 7, "tags"
    for _ in range(1, size):
        tensor = torch.zeros(2)
        assert dist.recv(tensor, tag=1) == tensor[0], "from any rank"
    refused(dist.DistBackendError, lambda: dist.recv(torch.zeros(4, dtype=torch.float64), 1), "of 2 f32", "of 4 f64")
else:
    if rank == 1:
        works = [dist.isend(torch.full((3,), 5.0), 0, tag=5), dist.isend(torch.full((3,), 7.0), 0, tag=7)]
        for work in works:
            work.wait()
    dist.send(torch.full((2,), float(rank)), 0, tag=1)
    if rank == 1:
        dist.send(torch.zeros(2), 0)
dist.barrier()
"""
        + END,
        3,
    )


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"] if IS_DEEP else ["aot_eager"])
def test_compiled_models_may_call_collectives(compiler: str) -> None:
    check(
        PRELUDE
        + f"""
from torch.distributed._functional_collectives import all_reduce

group = dist.group.WORLD
weights = torch.eye(3) * (rank + 1)

@torch.compile(backend="{compiler}", fullgraph=True)
def layer(inputs):
    hidden = inputs @ weights
    torch.ops.unisono.all_reduce_(hidden, "sum", group.group_name)
    return all_reduce(hidden.relu() + rank, "avg", group) * 2

inputs = torch.arange(6.0).view(2, 3)
both = layer(inputs)
assert both.equal((inputs * 3 + 0.5) * 2), both
refused(RuntimeError, lambda: torch.ops.unisono.all_reduce_(inputs, "xor", group.group_name), "xor")
"""
        + END
    )


def test_groups_and_meshes_reduce_over_their_ranks() -> None:
    check(
        PRELUDE
        + """
from torch.distributed.device_mesh import init_device_mesh

pair = dist.new_group([0, 2])
if rank in (0, 2):
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=pair)
    assert tensor == 2
split = dist.split_group(split_ranks=[[0, 2], [1]])
assert rank == 3 or split.size() == (1 if rank == 1 else 2)
if rank in (0, 2):
    dist.all_reduce(tensor, group=split)
    assert tensor == 4
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
for name in ("replica", "shard"):
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=mesh.get_group(name))
    assert tensor == 2
"""
        + END,
        4,
    )


MODEL = """
import torch.nn as nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 10))
torch.manual_seed(1 + rank)
inputs, targets = torch.randn(8, 20), torch.randint(0, 10, (8,))
loss_of = lambda model: nn.functional.cross_entropy(model(inputs), targets)

def gradients(model):
    return [parameter.grad.clone() for parameter in model.parameters()]

def averaged(model):
    model.zero_grad()
    loss_of(model).backward()
    found = gradients(model)
    for gradient in found:
        dist.all_reduce(gradient, op=dist.ReduceOp.AVG)
    return found
"""


def test_ddp_averages_gradients() -> None:
    check(
        PRELUDE
        + MODEL
        + """
from types import SimpleNamespace
from torch.nn.parallel import DistributedDataParallel as DDP
import unisono.torch

expected = averaged(model)
for options in ({}, {"static_graph": True}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}):
    ddp = DDP(model, **options)
    for _ in range(3):
        ddp.zero_grad()
        loss_of(ddp).backward()
        for found, wanted in zip(gradients(model), expected):
            torch.testing.assert_close(found, wanted)
ddp = DDP(model)
ddp.zero_grad()
with ddp.no_sync():
    loss_of(ddp).backward()
loss_of(ddp).backward()
for found, wanted in zip(gradients(model), expected):
    torch.testing.assert_close(found, 2 * wanted)
hooked = DDP(model)
hooked.register_comm_hook(None, unisono.torch.all_reduce_hook)
hooked.zero_grad()
loss_of(hooked).backward()
for found, wanted in zip(gradients(model), expected):
    torch.testing.assert_close(found, wanted)
# As of a bucket with complex parameters.
complex_gradients = torch.full((3,), complex(rank, 1))
unisono.torch.all_reduce_hook(None, SimpleNamespace(buffer=lambda: complex_gradients))
assert (complex_gradients == complex((size - 1) / 2, 1)).all(), complex_gradients
hooked.zero_grad()
compressed = DDP(model)
compressed.register_comm_hook(unisono.torch.CompressState("int8"), unisono.torch.compress_hook)
for _ in range(3):
    compressed.zero_grad()
    loss_of(compressed).backward()
    for found, wanted in zip(gradients(model), expected):
        torch.testing.assert_close(found, wanted)
with ddp.join():
    for _ in range(2 + rank):
        loss_of(ddp).backward()
"""
        + END
    )


def test_fsdp_zero_and_checkpoints_agree_with_one_rank() -> None:
    check(
        PRELUDE
        + MODEL
        + """
import copy
from torch.distributed.checkpoint import load, save
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

expected = averaged(model)
sharded = copy.deepcopy(model)
fully_shard(sharded)
loss_of(sharded).backward()
for parameter, wanted in zip(sharded.parameters(), expected):
    torch.testing.assert_close(parameter.grad.full_tensor(), wanted)
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)
for parameter, gradient in zip(model.parameters(), expected):
    parameter.grad = gradient
optimizer.step()
mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
first = mine.clone()
dist.broadcast(first, 0)
assert first.equal(mine)
place = os.environ["STORE"] + "-checkpoint"
state = get_model_state_dict(sharded)
save(state, checkpoint_id=place)
before = {name: value.full_tensor().clone() for name, value in state.items()}
for value in state.values():
    value.to_local().zero_()
load(state, checkpoint_id=place)
for name, value in state.items():
    assert value.full_tensor().equal(before[name])
"""
        + END
    )


def test_tensor_parallel_outputs_match_one_rank() -> None:
    check(
        PRELUDE
        + MODEL
        + """
import copy
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

mesh = init_device_mesh("cpu", (size,))
dist.broadcast(inputs, 0)
whole = model(inputs)
parallel = parallelize_module(copy.deepcopy(model), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
torch.testing.assert_close(parallel(inputs), whole)
tensor = distribute_tensor(inputs, mesh, [Shard(0)])
assert tensor.redistribute(mesh, [Shard(1)]).full_tensor().equal(inputs)
"""
        + END
    )


def test_backend_works_together_with_nccl() -> None:
    check(
        PRELUDE
        + """
tensor = torch.ones(3)
dist.all_reduce(tensor)
assert (tensor == size).all()
"""
        + END,
        BACKEND="cpu:unisono,cuda:nccl" if torch.cuda.is_available() else "cpu:unisono",
    )
