"""The programs of docs/pytorch.md, with unisono and with gloo. Skipped without their packages, which scripts/setup --recipes installs."""

import os
import re
import sys
from pathlib import Path

import pytest
from ranks import IS_DEEP, output_of

pytest.importorskip("torch", minversion="2.14")

DOCUMENT = Path(__file__).parents[3] / "docs" / "pytorch.md"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
DEADLINE_S = 600
only_deep = pytest.mark.skipif(not IS_DEEP, reason="runs only in the deep suite: starts a cluster, or compiles for minutes")


def programs(section: str) -> list[str]:
    """Returns the programs of a section."""
    found = re.search(rf"^## {re.escape(section)}$(.*?)(?=^## |\Z)", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert found, section
    return re.findall(r"^```python\n(.*?)^```$", found[1], re.MULTILINE | re.DOTALL)


def losses(text: str, backend: str) -> str:
    """Returns the losses that a program of the document prints at its end, after the name of its backend."""
    found = re.findall(rf"\b{backend} (\[[-+.e, \d]+\])", text)
    assert len(found) == 1, text
    return found[0]


def with_gloo(program: str) -> str:
    """Returns the program with gloo, and with an exit that skips the interpreter's shutdown.

    PyTorch 2.15 aborts during the shutdown if a thread of gloo still holds a tensor: 9 of 100 runs on two busy cores.
    """
    end = r"\g<0>; import os, sys; sys.stdout.flush(); os._exit(0)"
    return re.sub(r"^ *dist\.destroy_process_group\(\)$", end, program.replace('"unisono"', '"gloo"'), flags=re.MULTILINE)


def check(section: str, folder: Path, command: list[str]) -> None:
    """Runs the program of a section with both backends, which must give equal losses."""
    (program,) = programs(section)
    assert program.count('"unisono"') == 1, program
    both = []
    for backend, text in (("unisono", program), ("gloo", with_gloo(program))):
        (folder / "train.py").write_text(text)
        both.append(losses(output_of([*command, "train.py"], folder, DEADLINE_S, RAY_AUTH_MODE="disabled"), backend))
    assert both[0] == both[1]


def test_torchrun_program_matches_gloo(tmp_path: Path) -> None:
    check("torchrun", tmp_path, TORCHRUN)


def test_torchrun_restarts_the_program_after_a_kill(tmp_path: Path) -> None:
    """Kills a rank of the program of torchrun, which torchrun then restarts."""
    (program,) = programs("torchrun")
    start = 'dist.init_process_group("unisono")\n'
    killed = """
import os

if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) == 0:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), 9)
    # Fails, unless torchrun ends the process first.
    dist.barrier()
"""
    assert program.count(start) == 1
    (tmp_path / "train.py").write_text(program.replace(start, start + killed))
    options = (
        "--nnodes 1:2 --nproc-per-node 2 --max-restarts 2 --rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-conf last_call_timeout=2"
    )
    text = output_of([*TORCHRUN[:3], *options.split(), "train.py"], tmp_path, DEADLINE_S)
    (tmp_path / "train.py").write_text(with_gloo(program))
    assert losses(text, "unisono") == losses(output_of([*TORCHRUN, "train.py"], tmp_path, DEADLINE_S), "gloo")


def test_multiprocessing_program_matches_gloo(tmp_path: Path) -> None:
    check("torch.multiprocessing", tmp_path, [sys.executable])


def test_jupyter_program_matches_gloo(tmp_path: Path) -> None:
    pytest.importorskip("ipykernel")
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    cells = programs("Jupyter")
    assert "".join(cells).count('"unisono"') == 1
    both = []
    for backend, texts in (("unisono", cells), ("gloo", map(with_gloo, cells))):
        notebook = nbformat.v4.new_notebook()
        notebook.cells = [nbformat.v4.new_code_cell(text) for text in texts]
        # With this variable, kernels do not show the output of their child processes.
        variables = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        nbclient.NotebookClient(notebook, timeout=DEADLINE_S, resources={"metadata": {"path": str(tmp_path)}}).execute(env=variables)
        outputs = [output for cell in notebook.cells for output in cell.outputs]
        both.append(losses("".join(output.text for output in outputs if output.output_type == "stream"), backend))
        # The last cell reads the model that rank 0 has written.
        assert "weight" in outputs[-1].data["text/plain"], outputs
    assert both[0] == both[1]


def test_accelerate_program_matches_gloo(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    check("Accelerate", tmp_path, TORCHRUN)


def test_lightning_program_matches_gloo(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    check("Lightning", tmp_path, [sys.executable])


@only_deep
def test_ray_train_program_matches_gloo(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    check("Ray Train", tmp_path, [sys.executable])


@only_deep
def test_deepspeed_program_matches_gloo(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    check("DeepSpeed", tmp_path, TORCHRUN)
