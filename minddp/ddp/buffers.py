"""Buffers (BatchNorm's running statistics and the like) are no parameters: no gradient keeps them
equal. Three ways to treat them; broadcasting lives in `checks.broadcast_tensors`."""

from __future__ import annotations

from collections.abc import Mapping

import torch.distributed as dist
from torch import Tensor

from minddp.buckets import flatten, group_by_kind, unflatten

BUFFER_MODES = ("broadcast", "average", "off")


def average_buffers(
    buffers: Mapping[str, Tensor], group: dist.ProcessGroup, working: int, silent: bool = False
) -> None:
    """Replace each buffer by its average over the ranks.

    Integers (a count of batches, say) take the maximum instead: their mean may be no integer.

    Args:
        buffers: by name, same shapes and dtypes on every rank.
        working: number of ranks that add something; a `silent` rank adds nothing and changes
            nothing of its own.
    """
    for kind in group_by_kind([b for b in buffers.values() if b.numel() > 0]):
        flat = flatten(kind)
        average = flat.dtype.is_floating_point or flat.dtype.is_complex
        if silent:
            flat.zero_()
        elif average:
            flat.div_(working)
        dist.all_reduce(flat, dist.ReduceOp.SUM if average else dist.ReduceOp.MAX, group)
        if not silent:
            for buffer, window in zip(kind, unflatten(flat, kind), strict=True):
                buffer.data.copy_(window)
