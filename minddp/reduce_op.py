"""What an all-reduce does with two tensors: add them, or take the product or an extreme."""

from collections.abc import Callable

import torch
import torch.distributed as dist

SUM = dist.ReduceOp.SUM

Combine = Callable[[torch.Tensor, torch.Tensor], object]


def combiner(op: dist.ReduceOp.RedOpType) -> Combine:
    """The in-place operation ``total, received -> total`` for a ``ReduceOp``."""
    known: dict[dist.ReduceOp.RedOpType, Combine] = {
        dist.ReduceOp.SUM: torch.Tensor.add_,
        dist.ReduceOp.PRODUCT: torch.Tensor.mul_,
        dist.ReduceOp.MIN: lambda total, part: total.copy_(torch.minimum(total, part)),
        dist.ReduceOp.MAX: lambda total, part: total.copy_(torch.maximum(total, part)),
    }
    for known_op, combine in known.items():
        if op == known_op:
            return combine
    raise ValueError(f"op must be ReduceOp.SUM, PRODUCT, MIN or MAX, got {op}")
