"""Runs the tests of a CPU backend that are part of the installed PyTorch, over Unisono.

    python crates/python/tests/torch_suite.py [--ranks N] [-k WORD]

The tests request gloo, which is replaced by Unisono. Tests that PyTorch skips, mostly for lack of GPUs, are counted as skipped with the
reason. Tests in `NOT_SUPPORTED` are not run.
"""

import argparse
import collections
import os
import re
import sys
import tempfile
import unittest

# Tests of unsupported features, with the reasons. Keys match whole names of tests.
NOT_SUPPORTED = {
    r"test_.*sparse.*": "all-reduces of sparse tensors",
    r"test_(isend|send_recv.*)_(autograd|torch)_profiler": "gloo's asynchronous events in profiles",
    r"test_ddp_logging_data_cpu": "gloo's devices in the logging data of DDP",
    r"test_barrier_timeout_.*": "gloo's text of a timeout error",
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
    import unisono.torch
    from torch.testing._internal.distributed import distributed_test

    unisono.torch.register()
    dist.Backend._plugins["GLOO"] = dist.Backend._plugins["UNISONO"]
    # PyTorch assumes that a backend of gloo's type has gloo's class.
    dist.Backend.backend_type_map["gloo"] = dist.Backend.backend_type_map["unisono"]
    distributed_test.INIT_METHOD = "file://"
    # Unisono's calls are in profiles, but not as asynchronous events with shapes, unlike gloo's.
    distributed_test.PROFILING_SUPPORTED_BACKENDS.remove("gloo")

    class Unisono(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            # Forked, since spawned processes would import PyTorch for each rank of each test.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    names = [name for name in unittest.TestLoader().getTestCaseNames(Unisono) if word in name]
    excluded = {name: why for name in names for pattern, why in NOT_SUPPORTED.items() if re.fullmatch(pattern, name)}
    suite = unittest.TestSuite(Unisono(name) for name in names if name not in excluded)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    failed = len(result.failures) + len(result.errors)
    for name, why in excluded.items():
        print(f"not supported: {name}: {why}")
    for why, tests in collections.Counter(why for _, why in result.skipped).most_common():
        print(f"skipped: {tests} tests: {why}")
    for test, _ in result.failures + result.errors:
        print(f"FAILED: {test.id().rsplit('.', 1)[-1]}")
    passed = result.testsRun - failed - len(result.skipped)
    print(f"{passed} passed, {failed} failed, {len(result.skipped)} skipped, {len(excluded)} not supported")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
