"""The cache of compiled backends."""

import os
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")


def test_backends_that_no_program_loads_are_removed(tmp_path: Path) -> None:
    from unisono.torch.build import _remove_unused

    now = time.time()
    for name, days in (("torch-1", 31), ("torch-2", 29), ("other", 31)):
        backend = tmp_path / name / "_backend.so"
        backend.parent.mkdir()
        backend.touch()
        (backend.parent / "lock").touch()
        os.utime(backend, (now, now - days * 24 * 3600))
    # One that another process compiles.
    (tmp_path / "torch-3").mkdir()
    (tmp_path / "torch-3" / "lock").touch()
    _remove_unused(tmp_path)
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["other", "torch-2", "torch-3"]


def test_a_backend_that_a_program_loads_is_in_use() -> None:
    from unisono.torch.build import _folder, load

    load()
    backend = _folder() / "_backend.so"
    os.utime(backend, (0, 0))
    load()
    assert time.time() - backend.stat().st_mtime < 60
