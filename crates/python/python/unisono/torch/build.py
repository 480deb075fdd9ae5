"""Finds the backend for the installed PyTorch in the package `unisono-torch`, or compiles it on first use."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import torch

from .. import _unisono

_NAME = "_backend"
_SOURCES = Path(__file__).parent / "cpp"
_FLAGS = ["-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w", f"-DTORCH_EXTENSION_NAME={_NAME}"]
# The time limit of the compiler, and of other ranks of the machine that wait for the compiling one.
_DEADLINE_S = 900
# The time after which a wait for another process is reported. It is longer than compiling usually takes.
_SILENT_S = 60
# The time after which a backend that no program loads is removed.
_KEPT_S = 30 * 24 * 3600


def load() -> ModuleType:
    """Loads the compiled backend."""
    path = _prebuilt() or _cached()
    # The backend calls the functions of unisono.h, which the package's module exports.
    ctypes.CDLL(_unisono.__file__, mode=ctypes.RTLD_GLOBAL)
    loader = ExtensionFileLoader(_NAME, str(path))
    spec = spec_from_loader(_NAME, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def _prebuilt() -> Path | None:
    """Returns the backend of the package `unisono-torch`, if that is installed and has one."""
    package = find_spec("unisono_torch")
    if package is None or package.submodule_search_locations is None:
        return None
    folder = Path(package.submodule_search_locations[0])
    path = folder / backend_name() / f"{_NAME}.so"
    if path.exists():
        return path
    print(f"unisono: {folder} has no backend for PyTorch {torch.__version__}, this Python and this version of unisono", file=sys.stderr)
    return None


def _cached() -> Path:
    """Returns the backend in the user's cache. Compiles it if it is missing."""
    path = _folder() / f"{_NAME}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path.parent / "lock"):
            # Another rank may have compiled it meanwhile.
            if not path.exists():
                compile_backend(path)
                _remove_unused(path.parent.parent)
    # Marks it as in use. A user without write permission cannot do so, and cannot remove files either.
    with contextlib.suppress(OSError):
        os.utime(path)
    return path


def _sources() -> dict[str, bytes]:
    sources = {file.name: file.read_bytes() for file in sorted(_SOURCES.glob("*.[ch]pp"))}
    return sources | {"unisono.h": _unisono.HEADER.encode()}


def backend_name() -> str:
    """Returns the name of the backend for this PyTorch, this Python and these sources."""
    parts = [torch.__version__, sysconfig.get_config_var("EXT_SUFFIX"), *_FLAGS, *map(str, _sources().items())]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return f"torch-{torch.__version__}-{sys.implementation.cache_tag}-{key}"


def _folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "unisono" / backend_name()


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Acquires a lock that one process at a time can hold. The system releases it when the process ends."""
    began, is_reported = time.monotonic(), False
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited_s = time.monotonic() - began
                if waited_s > _SILENT_S and not is_reported:
                    print(f"unisono: waiting for another process that compiles the backend; it has locked {path}", file=sys.stderr)
                    is_reported = True
                if waited_s > _DEADLINE_S:
                    raise TimeoutError(f"another process has locked {path} for {_DEADLINE_S} s without compiling the backend") from None
                time.sleep(0.05)
        yield


def _standard_library() -> list[str]:
    """Returns the C++ library that PyTorch has loaded. A second, statically linked one would crash."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.split(maxsplit=5)[5] for line in lines if "/libstdc++.so.6" in line][:1]


def compile_backend(path: Path) -> None:
    """Compiles the backend to a file."""
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    if shutil.which(compiler[0]) is None:
        raise RuntimeError(
            f"no C++ compiler `{compiler[0]}`, which unisono's backend needs on first use: install one (apt-get install g++), or set CXX"
        )
    print(f"unisono: compiling the backend for PyTorch {torch.__version__}, once; it is cached in {path.parent}", file=sys.stderr)
    root = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        for name, text in _sources().items():
            (Path(folder) / name).write_bytes(text)
        includes = [root / "include", root / "include/torch/csrc/api/include", sysconfig.get_path("include")]
        command = [*compiler, *_FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
        command += [option for include in includes for option in ("-isystem", str(include))]
        command += ["-o", f"{_NAME}.so", "backend.cpp", f"-L{root / 'lib'}", "-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python"]
        command += _standard_library()
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
        if ended.returncode != 0:
            raise RuntimeError(f"unisono's backend failed to compile for PyTorch {torch.__version__}:\n{ended.stderr[-4000:]}")
        os.replace(Path(folder) / f"{_NAME}.so", path)


def _remove_unused(cache: Path) -> None:
    """Removes backends that no program has loaded for a long time, such as those for other versions of PyTorch. A removed file remains
    usable by processes that have loaded it."""
    for folder in cache.glob("torch-*"):
        backend = folder / f"{_NAME}.so"
        # Another process may remove it too, another user own it, or a network file system keep a file that is loaded.
        with contextlib.suppress(OSError):
            # A compilation that was killed leaves a folder without a backend.
            used = backend if backend.exists() else folder
            if time.time() - used.stat().st_mtime > _KEPT_S:
                shutil.rmtree(folder)
