"""Bucketing as pure functions: which tensors travel together, and how they share one flat buffer.

Nothing here communicates. A bucket plan is a list of lists of indices; a flat buffer is a 1-D
tensor; `unflatten` cuts it into windows that look exactly like the tensors they stand for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T", bound=Tensor)


def plan_buckets(
    sizes: Sequence[float], capacity: float | Sequence[float], mode: str = "max"
) -> list[list[int]]:
    """Split items, in order, into buckets of limited size.

    Two rules are in use in the field, and they differ by one item:

    - ``"max"``: a bucket never exceeds its capacity (fairseq's legacy buffer). An item larger
      than the capacity gets a bucket of its own.
    - ``"threshold"``: a bucket is closed once it *reaches* its capacity (torch's reducer), so it
      may exceed it by part of its last item.

    Args:
        sizes: size of each item, in any unit (elements, bytes), as long as `capacity` uses it too.
        capacity: capacity of every bucket, or a sequence: one for the first bucket, one for the
            second, ..., the last one for all that follow.
        mode: ``"max"`` or ``"threshold"``.

    Returns:
        A list of buckets, each a list of indices into `sizes`. Read one after the other they
        are ``0, 1, ..., len(sizes) - 1``: the order is kept and nothing is left out.

    Raises:
        ValueError: a negative size or capacity, or an unknown mode.
    """
    capacities = list(capacity) if isinstance(capacity, Sequence) else [capacity]
    _check_plan_arguments(sizes, capacities, mode)
    buckets: list[list[int]] = []
    current: list[int] = []
    filled = 0.0
    for index, size in enumerate(sizes):
        limit = capacities[min(len(buckets), len(capacities) - 1)]
        if mode == "max" and current and filled + size > limit:
            buckets.append(current)
            current, filled = [], 0.0
        current.append(index)
        filled += size
        if mode == "threshold" and filled >= limit:
            buckets.append(current)
            current, filled = [], 0.0
    if current:
        buckets.append(current)
    return buckets


def _check_plan_arguments(sizes: Sequence[float], capacities: list[float], mode: str) -> None:
    if mode not in ("max", "threshold"):
        raise ValueError(f"mode must be 'max' or 'threshold', not {mode!r}")
    if not capacities:
        raise ValueError("capacity is an empty sequence; give at least one number")
    for capacity in capacities:
        if not capacity >= 0:
            raise ValueError(f"capacity must be 0 or more, not {capacity!r}")
    for index, size in enumerate(sizes):
        if not size >= 0:
            raise ValueError(f"sizes[{index}] must be 0 or more, not {size!r}")


def group_by_kind(tensors: Sequence[T]) -> list[list[T]]:
    """Group tensors that can share a buffer: same dtype, same device. Order is kept inside and
    between groups (a group stands where its first tensor stood)."""
    groups: dict[tuple[torch.dtype, torch.device], list[T]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(groups.values())


def flatten(tensors: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
    """Copy tensors, one after the other, into one 1-D buffer.

    Args:
        tensors: any shapes and strides, all of one dtype and device, at least one.
        out: where to write, 1-D with at least as many elements; a new tensor if not given.

    Returns:
        The part of the buffer that was written: 1-D, ``sum(t.numel() for t in tensors)`` elements.
    """
    numel = sum(tensor.numel() for tensor in tensors)
    if out is None:
        out = torch.empty(numel, dtype=tensors[0].dtype, device=tensors[0].device)
    for window, tensor in zip(unflatten(out, tensors), tensors, strict=True):
        window.copy_(tensor)
    return out[:numel]


def unflatten(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Cut a flat buffer into one window per tensor of `like`, same shape and, where it can be,
    same strides.

    The windows are views: writing to one writes to the buffer. Keeping the strides matters for
    a transposed or channels_last parameter: its gradient stays in the layout that the optimizer
    and the next backward expect.

    Raises:
        ValueError: the buffer is too small, not 1-D, or not contiguous.
    """
    needed = sum(tensor.numel() for tensor in like)
    if flat.dim() != 1 or flat.numel() < needed or not flat.is_contiguous():
        raise ValueError(
            f"need a contiguous 1-D buffer of at least {needed} elements, got shape "
            f"{tuple(flat.shape)} with strides {flat.stride()}"
        )
    windows, offset = [], flat.storage_offset()
    for tensor in like:
        windows.append(flat.as_strided(tensor.shape, _dense_strides(tensor), offset))
        offset += tensor.numel()
    return windows


def _dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """The tensor's own strides if it fills its memory without holes or overlaps, else row-major.

    `empty_like` answers the question: it keeps the strides of dense tensors only."""
    return torch.empty_like(tensor, device="meta").stride()
