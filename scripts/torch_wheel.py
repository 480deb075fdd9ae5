"""Builds the wheel `unisono-torch` for the Python that runs this script and its PyTorch. Prints its path. Needs the package `unisono`.

    target/venv/bin/python scripts/torch_wheel.py FOLDER

The wheel has one compiled backend. unisono.torch searches for it before it compiles one. Its version combines those of unisono and PyTorch.
"""

import base64
import csv
import hashlib
import io
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import torch
from unisono.torch import build


def main(dist: Path) -> None:
    unisono, pytorch = version("unisono"), torch.__version__.split("+")[0]
    release = f"{unisono}.{pytorch}"
    with tempfile.TemporaryDirectory() as folder:
        backend = Path(folder) / "_backend.so"
        build.compile_backend(backend)
        subprocess.run(["strip", "--strip-unneeded", backend], check=True)
        python = sys.implementation.cache_tag.replace("cpython-", "cp")
        tag = f"{python}-{python}-{platform(backend)}"
        content = backend.read_bytes()
    info = f"unisono_torch-{release}.dist-info"
    files = {
        "unisono_torch/__init__.py": b'"""The compiled backend of unisono.torch."""\n',
        f"unisono_torch/{build.backend_name()}/_backend.so": content,
        f"{info}/METADATA": f"""\
Metadata-Version: 2.4
Name: unisono-torch
Version: {release}
Summary: The compiled backend of unisono for PyTorch {torch.__version__}
License-Expression: MIT OR Apache-2.0
Requires-Python: =={sys.version_info.major}.{sys.version_info.minor}.*
Requires-Dist: unisono =={unisono}
Requires-Dist: torch =={pytorch}
Description-Content-Type: text/markdown

The backend of `unisono.torch`, compiled for PyTorch {torch.__version__}: programs that use it need no C++ compiler. With another build
of PyTorch, unisono compiles its own.
""".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: unisono\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
    }
    path = dist / f"unisono_torch-{release}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
        wheel.writestr(f"{info}/RECORD", record_of(files, f"{info}/RECORD"))
    print(path)


def platform(library: Path) -> str:
    """Returns the platform tag of the oldest glibc that has the functions that the library calls."""
    symbols = subprocess.run(["readelf", "--version-info", "--wide", library], check=True, stdout=subprocess.PIPE, text=True).stdout
    newest = max(int(minor) for minor in re.findall(r"\bGLIBC_2\.(\d+)", symbols))
    # PyTorch's wheels need 2.28.
    return f"manylinux_2_{max(newest, 28)}_{sysconfig.get_platform().split('-', 1)[1]}"


def record_of(files: dict[str, bytes], own: str) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.writerow([name, f"sha256={digest}", len(content)])
    rows.writerow([own, "", ""])
    return text.getvalue()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
