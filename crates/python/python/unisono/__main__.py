"""The command `python -m unisono`."""

import argparse
import importlib.util
import sys

from . import bench
from ._unisono import is_launched


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m unisono", description="Unisono's collectives for Python.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    arrays = commands.add_parser("bench", help="measure all-reduces on numpy arrays")
    arrays.add_argument("--sizes", type=_sizes, default="8,32K,512K,8M,32M", help="sizes of arrays in bytes (default: %(default)s)")
    arrays.set_defaults(run=_bench)
    tensors = commands.add_parser("bench-torch", help="compare torch.distributed over Unisono and gloo: collectives and training steps")
    tensors.add_argument("--sizes", type=_sizes, default="8,4K,64K,1M,16M", help="sizes of tensors in bytes (default: %(default)s)")
    tensors.add_argument("--steps", action=argparse.BooleanOptionalAction, default=True, help="measure training steps (default: yes)")
    tensors.add_argument(
        "--parameters", choices=["10M", "100M"], default="10M", help="size of the GPT that steps train (default: %(default)s)"
    )
    tensors.add_argument("--only", action="append", metavar="TEXT", help="measure only rows whose name contains this text; may be repeated")
    tensors.add_argument("--rounds", type=_count, default=7, help="rounds, whose median is printed (default: %(default)s)")
    # Tests of the command need no accurate measurements.
    tensors.add_argument("--round-s", type=float, default=0.3, help=argparse.SUPPRESS)
    tensors.set_defaults(run=_bench_torch)
    tokens = commands.add_parser("bench-vllm", help="compare vLLM on CPUs over Unisono, gloo and its shared memory: all-reduces and tokens")
    tokens.add_argument(
        "--layers", type=_count, default=24, help="layers of the model, which has the shape of Qwen2.5 0.5B (default: %(default)s)"
    )
    tokens.add_argument("--batches", type=_counts, default="1,8", help="numbers of concurrent requests (default: %(default)s)")
    tokens.add_argument("--rounds", type=_count, default=7, help="rounds, whose median is printed (default: %(default)s)")
    tokens.set_defaults(run=_bench_vllm)
    for command in (arrays, tensors, tokens):
        command.add_argument("-n", "--ranks", type=_count, default=2, help="ranks to start without a launcher (default: 2)")
    options = parser.parse_args()
    return options.run(options)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got `{text}`")
    return number


def _counts(text: str) -> list[int]:
    return [_count(number) for number in text.split(",")]


def _sizes(text: str) -> list[int]:
    try:
        sizes = [bench.size_bytes(size) for size in text.split(",")]
    except ValueError:
        sizes = []
    if min(sizes, default=0) < 1:
        raise argparse.ArgumentTypeError(f"must be sizes such as 8,32K,2M, got `{text}`")
    return sizes


def _bench(options: argparse.Namespace) -> int:
    return bench.run(options.sizes) if is_launched() else bench.launch(options.ranks)


def _bench_torch(options: argparse.Namespace) -> int:
    # The process that only starts ranks does not import PyTorch, which takes seconds.
    if not is_launched():
        return bench.launch(options.ranks)
    from . import bench_torch

    return bench_torch.run(options)


def _bench_vllm(options: argparse.Namespace) -> int:
    if importlib.util.find_spec("vllm") is None:
        print("bench-vllm needs vLLM: install vLLM for CPUs in this environment", file=sys.stderr)
        return 2
    if not is_launched():
        return bench.launch(options.ranks)
    from . import bench_vllm

    return bench_vllm.run(options)


if __name__ == "__main__":
    sys.exit(main())
