"""Forks ranks from a process that has imported PyTorch. Otherwise each of the hundreds of ranks of the tests would spend 1.7 s on that.

Each line of standard input is a request, answered by one line: the environment and the program of a rank, whose process ID is returned;
or the process ID of a rank, whose exit code is returned, or `null` while it runs. `ranks.Forked` sends them.
"""

import gc
import json
import os
import sys
import types

# Most programs import these modules, or PyTorch does at their first use.
import torch._dynamo
import torch.distributed.fsdp  # noqa: F401


def serve() -> str:
    """Answers requests until standard input ends. In a forked process, returns its program."""
    for line in sys.stdin:
        request = json.loads(line)
        if "ends" in request:
            ended, status = os.waitpid(request["ends"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if ended else None
        elif not (answer := os.fork()):
            return begin(**request)
        print(json.dumps(answer), flush=True)
    sys.exit()


def begin(program: str, environment: dict[str, str], output: str) -> str:
    """Gives this process the state of one that was started with a program and an environment, and returns the program."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    for file, replaced in ((os.open(os.devnull, os.O_RDONLY), 0), (os.open(output, os.O_CREAT | os.O_WRONLY, 0o600), 1)):
        os.dup2(file, replaced)
        os.close(file)
    os.dup2(1, 2)
    return program


# Otherwise the collections of garbage at the end of each rank would copy the pages of all imported objects, which takes a second.
gc.freeze()
# Not in a function, so that the interpreter ends as after `python -c`.
code = compile(serve(), "<string>", "exec")
main = sys.modules["__main__"] = types.ModuleType("__main__")
exec(code, vars(main))
