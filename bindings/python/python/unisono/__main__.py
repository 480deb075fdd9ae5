"""The command `python -m unisono`."""

import argparse
import sys

from . import bench


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m unisono", description="Unisono's collectives for Python.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    measure = commands.add_parser(
        "bench", help="measure all-reduces on numpy arrays and, where PyTorch is installed, on tensors beside gloo"
    )
    measure.add_argument("-n", "--ranks", type=int, default=2, help="how many ranks to start, unless a launcher has (default: 2)")
    measure.add_argument("--sizes", default="8,32K,512K,8M,32M", help="sizes of arrays in bytes (default: %(default)s)")
    measure.set_defaults(run=lambda options: bench.run(options.ranks, [bench.size_bytes(size) for size in options.sizes.split(",")]))
    options = parser.parse_args()
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
