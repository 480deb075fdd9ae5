"""How programs on the backend of torch.distributed are started: torchrun, also elastic, and torch.multiprocessing."""

import sys
from pathlib import Path

import pytest
from ranks import output_of

pytest.importorskip("torch", minversion="2.14")

CHECK = """
import os
import torch
import torch.distributed as dist

def check(rank, size):
    tensor = torch.full((3,), rank + 1.0)
    dist.all_reduce(tensor)
    assert (tensor == size * (size + 1) / 2).all(), tensor
    dist.destroy_process_group()
"""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


def written(folder: Path, program: str) -> str:
    path = folder / "program.py"
    path.write_text(CHECK + program)
    return str(path)


def test_torchrun(tmp_path: Path) -> None:
    program = """
dist.init_process_group("unisono")
check(dist.get_rank(), dist.get_world_size())
print("done")
"""
    assert output_of([*TORCHRUN, "--standalone", written(tmp_path, program)], tmp_path).count("done") == 2


def test_elastic_torchrun_starts_the_ranks_again(tmp_path: Path) -> None:
    program = """
dist.init_process_group("unisono")
if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) == 0:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), 9)
    # This ends with an error, or torchrun ends it first.
    dist.barrier()
check(dist.get_rank(), dist.get_world_size())
print("done")
"""
    options = [
        "--nnodes",
        "1:2",
        "--max-restarts",
        "2",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "localhost:0",
        "--rdzv-conf",
        "last_call_timeout=2",
    ]
    assert output_of([*TORCHRUN, *options, written(tmp_path, program)], tmp_path).count("done") == 2


def test_spawned_processes(tmp_path: Path) -> None:
    program = """
def run(rank, size, store):
    dist.init_process_group("unisono", init_method=f"file://{store}", rank=rank, world_size=size)
    check(rank, size)
    print("done", flush=True)

if __name__ == "__main__":
    torch.multiprocessing.spawn(run, (2, os.path.abspath("store")), nprocs=2)
"""
    assert output_of([sys.executable, written(tmp_path, program)], tmp_path).count("done") == 2
