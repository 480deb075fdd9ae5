"""Tensors as the library takes them: contiguous, of an element type and with a reduction that it has."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import ReduceOp

ELEMENTS = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.uint32: "u32",
    torch.uint64: "u64",
}

# Reduced in a wider type, and narrowed again.
_WIDENED = {torch.bool: torch.int32, torch.int8: torch.int32, torch.int16: torch.int32, torch.uint16: torch.int32}
_WIDENED |= {dtype: torch.float32 for dtype in (torch.float8_e4m3fn, torch.float8_e5m2)}

_REDUCTIONS = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "mean",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.PRODUCT: "product",
    ReduceOp.BAND: "bit-and",
    ReduceOp.BOR: "bit-or",
    ReduceOp.BXOR: "bit-xor",
}


def checked(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that the library can reach; raises an error for others."""
    if tensor.device.type != "cpu":
        raise ValueError(
            f"unisono's backend works on tensors in host memory, and got one on {tensor.device}: "
            'init_process_group("cpu:unisono,cuda:nccl") leaves those on GPUs to NCCL'
        )
    if tensor.layout != torch.strided:
        raise ValueError(f"unisono's backend works on dense tensors, and got one of layout {tensor.layout}")
    # Complex numbers move and add up as pairs.
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _kind(op: ReduceOp) -> Any:
    """SUM and so on: options hold it in an object that has no name."""
    return getattr(op, "op", op)


def reduction(op: ReduceOp) -> str:
    """The name of a reduction, or an error for what the library has none for."""
    name = _REDUCTIONS.get(_kind(op))
    if name is None:
        raise ValueError(f"unisono's backend has no reduction {_kind(op)}")
    return name


def check_reduction(op: ReduceOp, tensor: torch.Tensor) -> None:
    """Raises an error for a reduction without a meaning for these elements."""
    name = reduction(op)
    if name.startswith("bit-") and (tensor.is_floating_point() or tensor.is_complex()):
        raise ValueError(f"{_kind(op)} has no meaning for {tensor.dtype}")
    if tensor.is_complex() and name not in ("sum", "mean"):
        raise ValueError(f"{_kind(op)} of complex numbers is not offered: sums and means are")


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor of these values that the library has a kernel for: the tensor itself where it is one."""
    if tensor.dtype in ELEMENTS:
        return tensor.contiguous()
    wide = _WIDENED.get(tensor.dtype)
    if wide is None:
        raise ValueError(f"unisono's backend has no reduction of {tensor.dtype}")
    return tensor.to(wide).contiguous()


def give_back(buffer: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copies the result of a call to the tensor that its buffer stands for, unless that is the tensor itself."""
    if buffer is not tensor:
        tensor.copy_(buffer)


def element(tensor: torch.Tensor) -> tuple[str, int]:
    """The element type of a tensor that is only moved, and how many of them an element is: bytes where the library has no such type."""
    name = ELEMENTS.get(tensor.dtype)
    return (name, 1) if name else ("u8", tensor.element_size())
