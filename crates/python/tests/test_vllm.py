"""vLLM on CPUs with the plug-in. Skipped with a reason if vLLM is not installed."""

import re
import sys
from pathlib import Path

import pytest
from ranks import output_of

pytest.importorskip("vllm")

DEADLINE_S = 300
# One of two workers is killed while it generates.
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


def test_tokens_match_gloo_and_the_benchmark_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "unisono", "bench-vllm", "--layers", "1", "--rounds", "1", "--batches", "1"]
    output = output_of(command, tmp_path, DEADLINE_S)
    assert re.search(r"^token of 1 requests, ms +[\d.]+ +[\d.]+", output, re.MULTILINE), output


def test_killed_worker_ends_the_engine(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(KILLED)
    variables = {"VLLM_CPU_OMP_THREADS_BIND": "0|1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    output = output_of([sys.executable, str(program), str(tmp_path)], tmp_path, DEADLINE_S, **variables)
    assert "workers communicate over unisono" in output, output
    found = re.search(r"^ended after (\S+) s$", output, re.MULTILINE)
    assert found and float(found[1]) < 10, output
