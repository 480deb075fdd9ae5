"""The training steps that `bench-torch` measures. A step returns its loss, if this rank computes it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam, Optimizer

from . import torch as unisono_torch
from .bench_models import GPT_BATCH, Shape, gpt, gpt_inputs, loss_of, mlp, mlp_inputs

Group = dist.ProcessGroup
Step = Callable[[], torch.Tensor | None]
# Functions that create a step of the same training, by backend; also without messages (SILENT) and on one rank (ALONE).
Programs = dict[str, Callable[[], Step]]
Inputs = tuple[torch.Tensor, torch.Tensor]

SILENT, ALONE = "nothing sent", "alone"


def _training(model: nn.Module, inputs: Inputs, optimizer: Optimizer | None = None) -> Step:
    samples, targets = inputs
    chosen = optimizer or SGD(model.parameters(), lr=0.01)

    def step() -> torch.Tensor:
        chosen.zero_grad()
        loss = loss_of(model(samples), targets)
        loss.backward()
        chosen.step()
        return loss.detach()

    return step


def _both(groups: dict[str, Group], program: Callable[[Group], Step], alone: Callable[[], Step]) -> Programs:
    return {name: partial(program, group) for name, group in groups.items()} | {ALONE: alone}


def _send_nothing(_state: None, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    future: Future[torch.Tensor] = Future()
    future.set_result(bucket.buffer())
    return future


# DDP checks the annotations, which are strings in this file.
_send_nothing.__annotations__ = {"bucket": dist.GradBucket, "return": Future[torch.Tensor]}


def _ddp(model_of: Callable[[], nn.Module], inputs_of: Callable[[int], Inputs], *, views: bool, groups: dict[str, Group]) -> Programs:
    inputs = inputs_of(dist.get_rank())

    def wrapped(group: Group) -> DistributedDataParallel:
        return DistributedDataParallel(model_of(), process_group=group, gradient_as_bucket_view=views)

    def silent() -> Step:
        model = wrapped(groups["gloo"])
        model.register_comm_hook(None, _send_nothing)
        return _training(model, inputs)

    programs = _both(groups, lambda group: _training(wrapped(group), inputs), lambda: _training(model_of(), inputs))
    return programs | {SILENT: silent}


def _hook(groups: dict[str, Group]) -> Programs:
    def hooked() -> Step:
        model = DistributedDataParallel(mlp(), process_group=groups["gloo"])
        model.register_comm_hook(groups["gloo"], unisono_torch.all_reduce_hook)
        return _training(model, mlp_inputs(dist.get_rank()))

    return _ddp(mlp, mlp_inputs, views=False, groups=groups) | {"unisono": hooked}


def _fsdp(kind: torch.dtype, shape: Shape, groups: dict[str, Group]) -> Programs:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    inputs = gpt_inputs(dist.get_rank())

    def sharded(group: Group) -> Step:
        model, mesh = gpt(shape), DeviceMesh.from_group(group, "cpu")
        for part in [*model, model]:
            fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=kind))
        return _training(model, inputs)

    return _both(groups, sharded, lambda: _training(gpt(shape).to(kind), inputs))


def _zero(shape: Shape, groups: dict[str, Group]) -> Programs:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    inputs = gpt_inputs(dist.get_rank())

    def divided(group: Group) -> Step:
        model = DistributedDataParallel(gpt(shape), process_group=group)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=Adam, process_group=group, lr=1e-4)
        return _training(model, inputs, optimizer)

    def alone() -> Step:
        model = gpt(shape)
        return _training(model, inputs, Adam(model.parameters(), lr=1e-4))

    return _both(groups, divided, alone)


def _tensor_parallel(shape: Shape, groups: dict[str, Group]) -> Programs:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    ranks = dist.get_world_size()
    if shape.heads % ranks:
        raise ValueError(f"the number of ranks must divide {shape.heads}, the number of heads, got `{ranks}`")

    def divided(group: Group) -> Step:
        model, mesh = gpt(shape), DeviceMesh.from_group(group, "cpu")
        plan = {name: ColwiseParallel() for name in ("query", "key", "value", "up")} | {name: RowwiseParallel() for name in ("out", "down")}
        for block in model[1:-1]:
            parallelize_module(block, mesh, plan)
        # All ranks work on the same samples.
        return _training(model, gpt_inputs(0, GPT_BATCH * ranks))

    return _both(groups, divided, lambda: _training(gpt(shape), gpt_inputs(0)))


def _pipeline(schedule_name: str, shape: Shape, groups: dict[str, Group]) -> Programs:
    """Trains with one stage on each rank. A rank computes as much as alone, in micro-batches of half the size."""
    from torch.distributed import pipelining

    ranks, rank = dist.get_world_size(), dist.get_rank()
    if ranks > shape.blocks:
        raise ValueError(f"at most {shape.blocks} ranks, the number of blocks of the model, got `{ranks}`")

    def staged(group: Group) -> Step:
        whole = gpt(shape)
        bounds = [len(whole) * stage // ranks for stage in range(ranks + 1)]
        part = whole[bounds[rank] : bounds[rank + 1]]
        stage = pipelining.PipelineStage(part, rank, ranks, torch.device("cpu"), group=group)
        schedule = getattr(pipelining, schedule_name)(stage, n_microbatches=2 * ranks, loss_fn=loss_of)
        samples, targets = gpt_inputs(0, GPT_BATCH * ranks)
        optimizer = SGD(part.parameters(), lr=0.01)

        def step() -> torch.Tensor | None:
            optimizer.zero_grad()
            losses: list[torch.Tensor] = []
            # Only the first stage gets samples, and only the last one targets.
            last = {"target": targets, "losses": losses} if rank == ranks - 1 else {}
            schedule.step(*([samples] if rank == 0 else []), **last)
            optimizer.step()
            return torch.stack(losses).mean().detach() if losses else None

        return step

    return _both(groups, staged, lambda: _training(gpt(shape), gpt_inputs(0)))


# Each creates the programs of a row for a GPT of this shape.
STEPS: dict[str, Callable[[Shape, dict[str, Group]], Programs]] = {
    "DDP of an MLP": lambda _shape, groups: _ddp(mlp, mlp_inputs, views=False, groups=groups),
    "DDP of an MLP, bucket views": lambda _shape, groups: _ddp(mlp, mlp_inputs, views=True, groups=groups),
    "DDP of an MLP, hook over gloo": lambda _shape, groups: _hook(groups),
    "DDP of a GPT": lambda shape, groups: _ddp(partial(gpt, shape), gpt_inputs, views=False, groups=groups),
    "FSDP2 of a GPT": partial(_fsdp, torch.float32),
    "FSDP2 of a GPT, bfloat16": partial(_fsdp, torch.bfloat16),
    "ZeRO of a GPT": _zero,
    "tensor-parallel GPT": _tensor_parallel,
    "pipeline of a GPT, 1F1B": partial(_pipeline, "Schedule1F1B"),
    "pipeline of a GPT, GPipe": partial(_pipeline, "ScheduleGPipe"),
}
# The tolerated relative difference of losses if more than two ranks add in different orders.
ROUNDING = {"FSDP2 of a GPT, bfloat16": 1e-2}
