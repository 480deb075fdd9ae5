"""A plug-in of vLLM for inference on CPUs: tensor parallelism over Unisono, on one machine or several.

vLLM loads it if both packages are installed, and logs this. Without it, vLLM uses its own shared memory on processors with AVX-512, and
gloo on other processors and between machines. `VLLM_PLUGINS=` disables it.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch.distributed import ProcessGroup
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.platforms import current_platform

from .torch import register as register_backend


class Communicator(CpuCommunicator):
    """The collectives of one of vLLM's groups of workers, over the backend "unisono". vLLM creates it."""

    def __init__(
        self, cpu_group: ProcessGroup, device: Any = None, device_group: ProcessGroup | None = None, unique_name: str = "", **options: Any
    ) -> None:
        # The name must not begin with "tp", for which vLLM opens its own shared memory (groups for tensor parallelism).
        name = f"unisono-{unique_name}" if unique_name.startswith("tp") else unique_name
        super().__init__(cpu_group, device, device_group, name, **options)
        self._name = "" if device_group is None else device_group.group_name
        self._all_reduce = torch.ops.unisono.all_reduce_.default

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """Sums a tensor over the workers, in place."""
        self._all_reduce(input_, "sum", self._name)
        return input_


def register() -> None:
    """Makes vLLM's CPU platform start its process groups with the backend "unisono". Does nothing on other platforms. vLLM calls it."""
    if not current_platform.is_cpu():
        return
    register_backend()
    platform = type(current_platform)
    platform.dist_backend = "unisono"
    platform.get_device_communicator_cls = classmethod(lambda _: f"{__name__}.{Communicator.__name__}")
    logging.getLogger("vllm.unisono").info("workers communicate over unisono")
