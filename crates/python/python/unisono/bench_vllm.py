"""Measures vLLM on CPUs over Unisono, over gloo, and over vLLM's own shared memory, alternating in one process."""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from vllm import LLM, SamplingParams
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.distributed.parallel_state import get_tp_group, in_the_same_node_as

from . import init
from .bench import broadcast_text, calls_per_round, median_times, processor
from .comm import Comm

# The shape of Qwen2.5 0.5B. Weights are random.
_HIDDEN = 896
MODEL = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": _HIDDEN,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "eos_token_id": 2,
}
_PROMPT = 32
# The time per token is the difference between generating many and few tokens, divided by their number.
_FEW, _MANY = 4, 36
_TOKENS = (1, 8, 64, 512)
_NAME_WIDTH, _WIDTH = 32, 16


def run(options: argparse.Namespace) -> int:
    """Measures on the ranks that a launcher has started. Each rank is a worker of vLLM."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    with tempfile.TemporaryDirectory() as folder, init() as comm:
        if "MASTER_ADDR" not in os.environ:
            with socket.socket() as free:
                free.bind(("localhost", 0))
                os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": broadcast_text(comm, str(free.getsockname()[1]))}
        Path(folder, "config.json").write_text(json.dumps(MODEL | {"num_hidden_layers": options.layers}))
        llm = LLM(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            tensor_parallel_size=comm.size,
            distributed_executor_backend="external_launcher",
            enforce_eager=True,
            max_model_len=512,
            enable_prefix_caching=False,
        )
        communicators = _communicators()
        if comm.rank == 0:
            print(f"vLLM, {comm.size} workers, medians of {options.rounds} rounds, {processor()}: unisono, and unisono / other")
            print(f"{'':<{_NAME_WIDTH}}" + "".join(f"{name:>{_WIDTH}}" for name in communicators))
        for tokens in _TOKENS:
            tensor = torch.ones(tokens, _HIDDEN, dtype=torch.bfloat16)
            calls = {name: partial(communicator.all_reduce, tensor) for name, communicator in communicators.items()}
            repeats = {name: calls_per_round(comm, call) for name, call in calls.items()}
            _print(comm, f"all-reduce of {tokens} tokens, µs", 1e6, median_times(comm, calls, repeats, options.rounds))
        for batch in options.batches:
            _print(comm, f"token of {batch} requests, ms", 1e3, _generated(comm, llm, communicators, batch, options.rounds))
    return 0


def _communicators() -> dict[str, CpuCommunicator]:
    """Returns a communicator for each backend that vLLM's workers can use on this machine."""
    group = get_tp_group()

    def by_vllm(unique_name: str) -> CpuCommunicator:
        return CpuCommunicator(group.cpu_group, group.device, group.cpu_group, unique_name)

    communicators = {"unisono": group.device_communicator, "gloo": by_vllm("gloo")}
    if all(in_the_same_node_as(group.cpu_group)):
        # vLLM derives the name of its shared memory from this variable. A constant name would still be in use
        # after a killed run.
        os.environ["VLLM_DIST_IDENT"] = os.environ["MASTER_PORT"]
        shared = by_vllm(group.unique_name)
        # vLLM does not support shared memory on some processors.
        if shared.dist_module is not dist:
            communicators["shared memory"] = shared
    return communicators


def _generated(comm: Comm, llm: LLM, communicators: dict[str, CpuCommunicator], batch: int, rounds: int) -> dict[str, float]:
    """Returns the median time per token. Fails if tokens depend on the communicator."""
    prompts = [{"prompt_token_ids": [(7 * request + 3 * token) % 1000 for token in range(_PROMPT)]} for request in range(batch)]
    times: dict[str, list[float]] = {name: [] for name in communicators}
    generated: dict[str, list[list[int]]] = {}
    _timed(llm, prompts, _FEW)
    for _ in range(rounds):
        for name, communicator in communicators.items():
            get_tp_group().device_communicator = communicator
            comm.barrier()
            few, _tokens = _timed(llm, prompts, _FEW)
            many, generated[name] = _timed(llm, prompts, _MANY)
            times[name].append((many - few) / (_MANY - _FEW))
    for name, tokens in generated.items():
        if tokens != generated["unisono"]:
            raise RuntimeError(f"the tokens of {batch} requests over {name} differ from those over unisono")
    return {name: statistics.median(figures) for name, figures in times.items()}


def _timed(llm: LLM, prompts: list[Any], tokens: int) -> tuple[float, list[list[int]]]:
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    began = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - began, [list(output.outputs[0].token_ids) for output in outputs]


def _print(comm: Comm, name: str, unit: float, seconds: dict[str, float]) -> None:
    if comm.rank != 0:
        return
    own = seconds["unisono"]
    cells = [f"{own * unit:.4g}", *(f"{own / other:.2f}" for kind, other in seconds.items() if kind != "unisono")]
    print(f"{name:<{_NAME_WIDTH}}" + "".join(f"{cell:>{_WIDTH}}" for cell in cells), flush=True)
