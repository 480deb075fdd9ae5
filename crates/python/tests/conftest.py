"""Adds the shared modules of tests to the path, and orders the tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

# Tests of the package without the backend of PyTorch, which scripts/test compiles meanwhile.
WITHOUT_BACKEND = {"test_numpy", "test_compressors", "test_gpu", "test_interrupts", "test_reductions", "test_shrink"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem not in WITHOUT_BACKEND)
