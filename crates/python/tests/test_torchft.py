"""Replicas under torchft that are killed and restarted. Skipped with a reason if torchft is not installed."""

import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ranks import IS_DEEP, QUICK_DUMPS

pytest.importorskip("torch", minversion="2.15")
pytest.importorskip("torchft")

REPLICA = """
import os, sys
from datetime import timedelta
import torch
import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer

name, lighthouse, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
limit = timedelta(seconds=10)
dist.init_process_group("unisono", store=dist.HashStore(), rank=0, world_size=1, timeout=limit, enable_reconfigure=True)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

def load(state):
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])

# A replica has one manager and its own store.
own = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
manager = Manager(
    pg=dist.group.WORLD, min_replica_size=1, replica_id=name, rank=0, world_size=1, lighthouse_addr=lighthouse,
    store_addr="localhost", store_port=own.port, timeout=limit, quorum_timeout=4 * limit, connect_timeout=4 * limit,
    load_state_dict=load, state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
)
replica, stepping = DistributedDataParallel(manager, model), Optimizer(manager, optimizer)
weights = torch.randn(20, 1, generator=torch.Generator().manual_seed(7))

def loss_of(model, generator, samples):
    inputs = torch.randn(samples, 20, generator=generator)
    return ((model(inputs) - torch.tanh(inputs @ weights)) ** 2).mean()

generator = torch.Generator().manual_seed(os.getpid())
while manager.current_step() < steps:
    stepping.zero_grad()
    loss_of(replica, generator, 64).backward()
    stepping.step()
    if manager.current_step() % 10 == 0:
        print("at", manager.current_step(), flush=True)
loss = loss_of(model, torch.Generator().manual_seed(1), 4096).item()
bits = hash(tuple(value for parameter in model.parameters() for value in parameter.flatten().tolist()))
print("final", manager.current_step(), loss, bits, flush=True)
manager.shutdown()
# Threads of torchft may still run.
os._exit(0)
"""
REPLICAS = 3
STEPS, KILLS, DEADLINE_S = (40000, 20, 500) if IS_DEEP else (4000, 2, 100)


def steps_of(output: Path) -> int:
    """Returns the progress of a replica since it was started."""
    return max((int(step) for step in re.findall(r"^at (\d+)$", output.read_text(), re.MULTILINE)), default=0)


def trained(folder: Path, kills: int) -> list[str]:
    """Trains, and kills and restarts replicas meanwhile. Returns the last line of output of each."""
    from torchft._torchft import LighthouseServer

    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=1, join_timeout_ms=500)
    outputs = [folder / f"{kills}-{replica}" for replica in range(REPLICAS)]

    def start(replica: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", REPLICA, f"replica-{replica}-", lighthouse.address(), str(STEPS)]
        variables = os.environ | {
            "OMP_NUM_THREADS": "1",
            "UNISONO_FLIGHT_DIR": str(folder),
            "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/calls-of-rank-",
            # With slow dumps, a replica whose peer was killed would be absent for longer than the timeout of the others.
            **QUICK_DUMPS,
        }
        return subprocess.Popen(command, env=variables, stdout=outputs[replica].open("w"), stderr=subprocess.DEVNULL, text=True)

    processes = [start(replica) for replica in range(REPLICAS)]
    chance, deadline, killed = random.Random(kills), time.monotonic() + DEADLINE_S, 0
    try:
        while any(process.poll() is None for process in processes):
            assert time.monotonic() < deadline, [output.read_text()[-300:] for output in outputs]
            time.sleep(0.1)
            replica, at = chance.randrange(REPLICAS), [steps_of(output) for output in outputs]
            # Kills a replica only if all are running, and early enough that it can rejoin the others before they end.
            if killed < kills and min(at) > 0 and max(at) < STEPS - 2000:
                processes[replica].kill()
                assert processes[replica].wait() == -9
                killed += 1
                processes[replica] = start(replica)
        assert [process.returncode for process in processes] == [0] * REPLICAS
        assert killed == kills
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
        lighthouse.shutdown()
    return [output.read_text().splitlines()[-1] for output in outputs]


def test_killed_replicas_rejoin(tmp_path: Path) -> None:
    losses = []
    for kills in (0, KILLS):
        lines = trained(tmp_path, kills)
        assert len(set(lines)) == 1, f"the replicas differ after {kills} kills: {lines}"
        found = re.fullmatch(r"final (\d+) (\S+) \S+", lines[0])
        assert found and int(found[1]) == STEPS, lines
        losses.append(float(found[2]))
    assert abs(losses[1] - losses[0]) < 0.2 * losses[0], losses
