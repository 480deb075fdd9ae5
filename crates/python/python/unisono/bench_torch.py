"""Compares torch.distributed over Unisono and over gloo, alternating in one process: collectives, and steps of training."""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from . import init
from . import torch as unisono_torch
from .bench import broadcast_text, calls_per_round, median_times, processor
from .bench_calls import CALLS, MESSAGES_PER_CALL, WITHOUT_ARRAY, Call
from .bench_models import SHAPES
from .bench_steps import ALONE, ROUNDING, SILENT, STEPS, Programs
from .comm import Comm

_TIMEOUT_S = 120
# DDP rebuilds its buckets after the first step.
_WARM_STEPS = 2
_ROUNDING = 1e-5
_BACKENDS = ("unisono", "gloo")
_NAME_WIDTH, _WIDTH = 32, 16


class NotRunError(Exception):
    """Raised with the reason why a row has no measurements."""


def run(options: argparse.Namespace) -> int:
    """Measures on the ranks that a launcher has started."""
    wanted, tables = options.only or [""], (CALLS, STEPS if options.steps else {})
    calls, steps = ([name for name in rows if any(text in name for text in wanted)] for rows in tables)
    if not calls and not steps:
        # All ranks detect it, and one of them reports it.
        if os.environ.get("RANK", "0") == "0":
            names = "; ".join(name for rows in tables for name in rows)
            print(f"--only must be a part of a row's name, got `{'`, `'.join(wanted)}`; rows: {names}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    # Ranks that report a failure wait longer than the deadline of the calls of other ranks.
    control = 2 * _TIMEOUT_S
    with tempfile.TemporaryDirectory() as folder, init(timeout=control) as comm:
        groups = _groups(comm, broadcast_text(comm, folder), timedelta(seconds=control))
        if calls:
            _print_calls(comm, groups, calls, options.sizes, options.rounds)
        if calls and steps:
            _print(comm, "")
        if steps:
            _print_steps(comm, groups, steps, options)
        dist.destroy_process_group()
        # Rank 0's folder, which has the store, is removed after this.
        comm.barrier()
    return 0


def _groups(comm: Comm, folder: str, control: timedelta) -> dict[str, dist.ProcessGroup]:
    """Returns the measured groups. The default group only transfers reports."""
    unisono_torch.register()
    store = dist.FileStore(f"{folder}/store", comm.size)
    dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size, timeout=control)
    return {name: dist.new_group(backend=name, timeout=timedelta(seconds=_TIMEOUT_S)) for name in _BACKENDS}


def _print_calls(comm: Comm, groups: dict[str, dist.ProcessGroup], names: list[str], sizes: list[int], rounds: int) -> None:
    _print(comm, f"collectives of float32: unisono / gloo (µs of unisono), {_conditions(comm, rounds)}")
    _print(comm, f"{'bytes':<{_NAME_WIDTH}}" + "".join(f"{size:>{_WIDTH}}" for size in sizes))
    for name in names:
        try:
            row = [_call_cell(comm, groups, name, size, rounds) for size in (sizes[:1] if name in WITHOUT_ARRAY else sizes)]
        except NotRunError as error:
            row = [f"  not run: {error}"]
        _print(comm, f"{name:<{_NAME_WIDTH}}" + "".join(f"{cell:>{_WIDTH}}" for cell in row))


def _call_cell(comm: Comm, groups: dict[str, dist.ProcessGroup], name: str, size: int, rounds: int) -> str:
    calls = {backend: _started(backend, partial(CALLS[name], group, size), 1) for backend, group in groups.items()}
    seconds = median_times(comm, calls, {backend: calls_per_round(comm, call) for backend, call in calls.items()}, rounds)
    return f"{_ratio(seconds)} ({_figure(seconds['unisono'] * 1e6 / MESSAGES_PER_CALL.get(name, 1))})"


def _print_steps(comm: Comm, groups: dict[str, dist.ProcessGroup], names: list[str], options: argparse.Namespace) -> None:
    rounds, of_gpt = options.rounds, f"GPT of {options.parameters} parameters"
    _print(comm, f"steps of training: unisono / gloo (ms of unisono), ms of the others, {of_gpt}, {_conditions(comm, rounds)}")
    _print(comm, f"{'':<{_NAME_WIDTH}}" + "".join(f"{column:>{_WIDTH}}" for column in ("unisono", SILENT, ALONE, "of linear")))
    for name in names:
        try:
            row = _step_cells(
                comm, name, _run_on_all("all programs", partial(STEPS[name], SHAPES[options.parameters], groups)), rounds, options.round_s
            )
        except NotRunError as error:
            row = [f"  not run: {error}"]
        _print(comm, f"{name:<{_NAME_WIDTH}}" + "".join(f"{cell:>{_WIDTH}}" for cell in row))


def _step_cells(comm: Comm, name: str, programs: Programs, rounds: int, round_s: float) -> list[str]:
    losses: dict[str, torch.Tensor | None] = {}

    def kept(program: str) -> Call:
        step = _started(program, programs[program], _WARM_STEPS)

        def call() -> None:
            losses[program] = step()

        return call

    calls = {program: kept(program) for program in programs}
    steps = min(calls_per_round(comm, call, round_s, _WARM_STEPS) for call in calls.values())
    # Losses are comparable only after the same number of steps.
    seconds = median_times(comm, calls, dict.fromkeys(calls, steps), rounds)
    _check_losses(name, [losses[backend] for backend in _BACKENDS])
    silent = _figure(seconds[SILENT] * 1e3) if SILENT in seconds else "-"
    unisono, alone = seconds["unisono"], seconds[ALONE]
    return [f"{_ratio(seconds)} ({_figure(unisono * 1e3)})", silent, _figure(alone * 1e3), f"{alone / unisono:.0%}"]


def _check_losses(name: str, losses: list[torch.Tensor | None]) -> None:
    """Raises an error on all ranks if the loss of any rank differs between the backends."""
    # A sum of two values has one result. Sums of more values depend on the order.
    allowed = ROUNDING.get(name, _ROUNDING) if dist.get_world_size() > 2 else 0.0
    unisono, gloo = (0.0 if loss is None else loss.item() for loss in losses)
    is_close = math.isclose(unisono, gloo, rel_tol=allowed)
    difference = _first(None if is_close else f"{name}: the loss of rank {dist.get_rank()} is {unisono} with unisono, {gloo} with gloo")
    if difference is not None:
        raise RuntimeError(difference)


def _started(label: str, make: Callable[[], Callable[[], object]], times: int) -> Callable[[], object]:
    """Creates a call and runs it a few times, to test whether it is supported."""

    def started() -> Callable[[], object]:
        call = make()
        for _ in range(times):
            call()
        return call

    return _run_on_all(label, started)


def _run_on_all(label: str, run: Callable[[], object]) -> object:
    """Runs a function on all ranks. If it fails on any of them, all raise a NotRunError."""
    result = reason = None
    try:
        result = run()
    except Exception as error:  # PyTorch raises many types of errors for unsupported calls.
        lines = str(error).split("\n")
        reason = f"{label}: {lines[0] or type(error).__name__}"
    reason = _first(reason)
    if reason is not None:
        raise NotRunError(reason)
    return result


def _first(text: str | None) -> str | None:
    """Returns the earliest reported text on all ranks. Later reports may be consequences of it."""
    reports: list[tuple[float, str] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(reports, None if text is None else (time.monotonic(), text))
    return min((report for report in reports if report is not None), default=(0.0, None))[1]


def _conditions(comm: Comm, rounds: int) -> str:
    return f"{comm.size} ranks of one thread, median over {rounds} rounds, {processor()}"


def _ratio(seconds: dict[str, float]) -> str:
    return f"{seconds['unisono'] / seconds['gloo']:.2f}"


def _figure(value: float) -> str:
    """Formats a number with three significant digits, or as an integer."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _print(comm: Comm, line: str) -> None:
    if comm.rank == 0:
        print(line, flush=True)
