"""What works written in Python answer.

PyTorch hands its callers a holder of such a work, which passes on `wait` and `get_future`, and nothing else: a holder is never
completed, and knows no sender. So `Work` is taught to look into the future for the rest, of works of unknown type, as holders are.
"""

from __future__ import annotations

import torch
from torch._C._distributed_c10d import OpType, Work

# The first element of the tensor that says the sender of a message, behind the one received.
_MARK = 0x756E69736F6E6F
_UNKNOWN = int(OpType.UNKNOWN)
_is_completed, _is_success, _exception, _source_rank = (Work.is_completed, Work.is_success, Work.exception, Work._source_rank)


def with_source(result: list[torch.Tensor], source: int) -> list[torch.Tensor]:
    """The result of a message from any rank, and the rank that sent it."""
    return [*result, torch.tensor([_MARK, source])]


def _is_held(work: Work) -> bool:
    return work._get_op_type() == _UNKNOWN


def _error(work: Work) -> Exception | None:
    try:
        work.get_future().value()
    except Exception as error:
        return error
    return None


def is_completed(work: Work) -> bool:
    return work.get_future().done() if _is_held(work) else _is_completed(work)


def is_success(work: Work) -> bool:
    return is_completed(work) and _error(work) is None if _is_held(work) else _is_success(work)


def exception(work: Work) -> Exception | None:
    return (_error(work) if is_completed(work) else None) if _is_held(work) else _exception(work)


def source_rank(work: Work) -> int:
    result = work.get_future().value() if _is_held(work) else None
    if result and result[-1].numel() == 2 and result[-1].flatten()[0] == _MARK:
        return int(result[-1][1])
    return _source_rank(work)


def teach() -> None:
    """Teaches it."""
    Work.is_completed, Work.is_success, Work.exception = is_completed, is_success, exception
    Work._source_rank = Work.source_rank = source_rank
