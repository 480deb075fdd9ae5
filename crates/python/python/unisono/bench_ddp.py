"""Measures steps of DDP: with Unisono, with gloo, and with nothing sent, beside one rank's step without DDP."""

from __future__ import annotations

import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from . import init
from .bench import agreed, launch, processor
from .comm import Comm
from .torch import all_reduce_hook, is_backend

# Steps of one figure, and how many of them only warm up.
_STEPS, _WARM = 24, 4


def run(ranks: int, hidden: int, batch: int) -> int:
    """Measures on the ranks that a launcher has started, or starts them."""
    if "WORLD_SIZE" not in os.environ:
        return launch(ranks)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, init() as comm:
        store = dist.FileStore(f"{agreed(comm, folder)}/store", comm.size)
        dist.init_process_group("unisono" if is_backend() else "gloo", store=store, rank=comm.rank, world_size=comm.size)
        model = nn.Sequential(nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10))
        figures = _figures(comm, model, batch)
        if comm.rank == 0:
            parameters = sum(parameter.numel() for parameter in model.parameters())
            print(
                f"{parameters} parameters, batch {batch} a rank, {comm.size} ranks of one thread, {processor()}: ms a step, and of linear"
            )
            for name, seconds in figures.items():
                print(f"{name:>28}{seconds * 1e3:>10.2f}{figures['alone'] / seconds:>8.0%}")
        dist.destroy_process_group()
    return 0


def _figures(comm: Comm, model: nn.Module, batch: int) -> dict[str, float]:
    gloo = dist.new_group(backend="gloo")
    silent, hooked = DistributedDataParallel(model), DistributedDataParallel(model, process_group=gloo)
    silent.register_comm_hook(None, _send_nothing)
    hooked.register_comm_hook(None, all_reduce_hook)
    models = {"alone": model, "DDP, nothing sent": silent}
    if is_backend():
        models["DDP, unisono"] = DistributedDataParallel(model)
        models["DDP, unisono, bucket views"] = DistributedDataParallel(model, gradient_as_bucket_view=True)
    models |= {"DDP, unisono's hook": hooked, "DDP, gloo": DistributedDataParallel(model, process_group=gloo)}
    rounds = [{name: _step_s(comm, wrapped, batch) for name, wrapped in models.items()} for _ in range(3)]
    return {name: statistics.median(figures[name] for figures in rounds) for name in models}


def _send_nothing(_state: None, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    future: Future[torch.Tensor] = Future()
    future.set_result(bucket.buffer())
    return future


# DDP wants types, and not their text.
_send_nothing.__annotations__ = {"bucket": dist.GradBucket, "return": Future[torch.Tensor]}


def _step_s(comm: Comm, model: nn.Module, batch: int) -> float:
    """The median time of a step."""
    inputs, targets = torch.randn(batch, 784), torch.randint(0, 10, (batch,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    times = []
    for _ in range(_STEPS):
        comm.barrier()
        began = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
    return statistics.median(times[_WARM:])
