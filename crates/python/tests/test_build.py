"""The cache of compiled backends."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")


def test_unused_backends_are_removed(tmp_path: Path) -> None:
    from unisono.torch.build import _remove_unused

    now = time.time()
    for name, days in (("torch-1", 31), ("torch-2", 29), ("other", 31)):
        backend = tmp_path / name / "_backend.so"
        backend.parent.mkdir()
        backend.touch()
        (backend.parent / "lock").touch()
        os.utime(backend, (now, now - days * 24 * 3600))
    # A backend that another process is compiling.
    (tmp_path / "torch-3").mkdir()
    (tmp_path / "torch-3" / "lock").touch()
    _remove_unused(tmp_path)
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["other", "torch-2", "torch-3"]


def test_loading_marks_a_backend_as_used() -> None:
    from unisono.torch.build import _folder, load

    load()
    backend = _folder() / "_backend.so"
    os.utime(backend, (0, 0))
    load()
    assert time.time() - backend.stat().st_mtime < 60


def test_prebuilt_backend_is_loaded_without_compilation(tmp_path: Path) -> None:
    from unisono.torch.build import _folder, backend_name, load

    load()
    package = tmp_path / "unisono_torch"
    shutil.copytree(_folder(), package / backend_name())
    # In a separate process, since a process can load only one backend.
    program = "from unisono.torch.build import load; print(load().__file__)"
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.stdout == f"{package / backend_name() / '_backend.so'}\n", ended
    assert not (tmp_path / "cache").exists()


def test_prebuilt_backend_of_another_pytorch_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from unisono.torch.build import _prebuilt

    (tmp_path / "unisono_torch" / "torch-2.0").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    assert _prebuilt() is None
    assert "has no backend for PyTorch 2" in capfd.readouterr().err
