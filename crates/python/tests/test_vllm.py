"""vLLM on CPUs with the plug-in. Skipped, and says so, where vLLM is not installed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm")

DEADLINE_S = 300
# A worker of two is killed while it generates.
KILLED = """
import json, os, sys, threading, time
from pathlib import Path

import psutil
from vllm import LLM, SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError

from unisono.bench_vllm import MODEL

if __name__ == "__main__":
    Path(sys.argv[1], "config.json").write_text(json.dumps(MODEL | {"num_hidden_layers": 1}))
    llm = LLM(sys.argv[1], load_format="dummy", skip_tokenizer_init=True, tensor_parallel_size=2, enforce_eager=True, max_model_len=4096)
    ended = 0.0

    def kill():
        global ended
        time.sleep(3)
        (worker,) = [process for process in psutil.Process().children(recursive=True) if "Worker_TP1" in " ".join(process.cmdline())]
        worker.kill()
        ended = time.monotonic()

    threading.Thread(target=kill).start()
    try:
        llm.generate([{"prompt_token_ids": [5] * 8}], SamplingParams(max_tokens=4000, ignore_eos=True, detokenize=False), use_tqdm=False)
        print("not ended")
    except EngineDeadError:
        print(f"ended after {time.monotonic() - ended:.1f} s")
"""


def run(arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    process = subprocess.Popen(
        command, env=os.environ | environment, text=True, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        output, _ = process.communicate(timeout=DEADLINE_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, output)


def test_tokens_are_those_of_gloo_and_the_benchmark_says_how_fast() -> None:
    ended = run(["-m", "unisono", "bench-vllm", "--layers", "1", "--rounds", "1", "--batches", "1"])
    assert ended.returncode == 0, ended.stdout
    rows = [line.split() for line in ended.stdout.splitlines()]
    assert any(row[:2] == ["token", "of"] and float(row[5]) > 0 for row in rows if len(row) > 5), ended.stdout


def test_the_death_of_a_worker_ends_the_engine(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(KILLED)
    ended = run([str(program), str(tmp_path)], VLLM_CPU_OMP_THREADS_BIND="0|1", VLLM_CPU_KVCACHE_SPACE="1")
    assert "workers communicate over unisono" in ended.stdout, ended.stdout
    seconds = [float(line.split()[2]) for line in ended.stdout.splitlines() if line.startswith("ended after")]
    assert seconds and seconds[0] < 10, ended.stdout
