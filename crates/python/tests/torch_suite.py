"""Runs PyTorch's own tests of a CPU backend, from the installed package, over Unisono.

    python crates/python/tests/torch_suite.py [--ranks N] [-k WORD]

The tests ask for gloo, and get Unisono in its place. A test that PyTorch skips for want of something (GPUs, mostly) is
counted as skipped, with its reason. Those of `NOT_OFFERED` are not run.
"""

import argparse
import collections
import os
import re
import sys
import tempfile
import unittest

# Tests of features that Unisono does not offer, with the reasons. Keys match the whole name of a test.
NOT_OFFERED = {
    r"test_.*sparse.*": "all-reduces of sparse tensors",
    r"test_(isend|send_recv.*)_(autograd|torch)_profiler": "gloo's asynchronous events in profiles",
    r"test_ddp_logging_data_cpu": "gloo's devices in the logging data of DDP",
    r"test_barrier_timeout_.*": "gloo's words for a timeout",
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("-k", default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {
            "BACKEND": "gloo",
            "WORLD_SIZE": str(arguments.ranks),
            "TEMP_DIR": folder,
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "60",
            "OMP_NUM_THREADS": "1",
            "UNISONO_WARNINGS": "off",
            "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/calls-of-rank-",
        }
        return run(arguments.k)


def run(word: str) -> int:
    import torch
    import torch.distributed as dist
    import torch.testing._internal.distributed.distributed_test as theirs
    import unisono.torch

    unisono.torch.register()
    dist.Backend._plugins["GLOO"] = dist.Backend._plugins["UNISONO"]
    # PyTorch assumes that a backend of gloo's type has gloo's class.
    dist.Backend.backend_type_map["gloo"] = dist.Backend.backend_type_map["unisono"]
    theirs.INIT_METHOD = "file://"
    # Unisono's calls are in profiles, but not as asynchronous events with shapes, unlike gloo's.
    theirs.PROFILING_SUPPORTED_BACKENDS.remove("gloo")

    class Unisono(theirs.TestDistBackend, theirs.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            # Forked, since spawned processes would import PyTorch for each rank of each test.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    names = [name for name in unittest.TestLoader().getTestCaseNames(Unisono) if word in name]
    refused = {name: why for name in names for what, why in NOT_OFFERED.items() if re.fullmatch(what, name)}
    suite = unittest.TestSuite(Unisono(name) for name in names if name not in refused)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    failed = len(result.failures) + len(result.errors)
    for name, why in refused.items():
        print(f"not offered: {name}: {why}")
    for why, tests in collections.Counter(why for _, why in result.skipped).most_common():
        print(f"skipped: {tests} tests: {why}")
    for test, _ in result.failures + result.errors:
        print(f"FAILED: {test.id().rsplit('.', 1)[-1]}")
    passed = result.testsRun - failed - len(result.skipped)
    print(f"{passed} passed, {failed} failed, {len(result.skipped)} skipped, {len(refused)} not offered")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
