"""The command `python -m unisono`."""

import argparse
import sys

from . import bench


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m unisono", description="Unisono's collectives for Python.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    arrays = commands.add_parser("bench", help="measure all-reduces on numpy arrays and, with PyTorch, on tensors beside gloo")
    arrays.add_argument("--sizes", default="8,32K,512K,8M,32M", help="sizes of arrays in bytes (default: %(default)s)")
    arrays.set_defaults(run=_bench)
    steps = commands.add_parser("bench-ddp", help="measure steps of PyTorch's DDP beside gloo, and one rank's without DDP")
    steps.add_argument("--hidden", type=int, default=1024, help="the width of the model's two hidden layers (default: %(default)s)")
    steps.add_argument("--batch", type=int, default=128, help="samples of a rank in a step (default: %(default)s)")
    steps.set_defaults(run=_bench_ddp)
    for command in (arrays, steps):
        command.add_argument("-n", "--ranks", type=int, default=2, help="ranks to start, unless a launcher has (default: 2)")
    options = parser.parse_args()
    return options.run(options)


def _bench(options: argparse.Namespace) -> int:
    return bench.run(options.ranks, [bench.size_bytes(size) for size in options.sizes.split(",")])


def _bench_ddp(options: argparse.Namespace) -> int:
    # Only this needs PyTorch.
    from . import bench_ddp

    return bench_ddp.run(options.ranks, options.hidden, options.batch)


if __name__ == "__main__":
    sys.exit(main())
