"""The sender of a message from any rank.

PyTorch asks the work, by a method that works written in Python cannot have: what it asks is a copy, which has the future and nothing
else of ours. So the future of such a work says it, behind the tensor, and `Work._source_rank` is taught to look there.
"""

from __future__ import annotations

import torch
from torch._C._distributed_c10d import Work

# The first element of the tensor that says the sender.
_MARK = 0x756E69736F6E6F
_of_torch = Work._source_rank


def with_source(result: list[torch.Tensor], source: int) -> list[torch.Tensor]:
    """The result of a message, and the rank that sent it."""
    return [*result, torch.tensor([_MARK, source])]


def _source_rank(work: Work) -> int:
    try:
        return _of_torch(work)
    except RuntimeError:
        result = work.get_future().value()
        if result and result[-1].numel() == 2 and result[-1][0] == _MARK:
            return int(result[-1][1])
        raise


def teach() -> None:
    """Teaches it."""
    Work._source_rank = _source_rank
