"""Is it right? Are the replicas the same, and are the gradients those of one process?"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

Batch = tuple[Any, Any]


def verify_replicas(model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Raise unless every rank holds the same parameters and buffers, bit for bit.

    Args:
        model: bare or wrapped. A collective: every rank must call this.

    Raises:
        RuntimeError: on every rank, naming the first tensor that differs, and the ranks.
    """
    mine = [
        (name, _fingerprint(tensor))
        for name, tensor in model.state_dict().items()
        if isinstance(tensor, Tensor)
    ]
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    for other, theirs in enumerate(everyone):
        if [name for name, _ in theirs] != [name for name, _ in everyone[0]]:
            raise RuntimeError(f"rank {other} and rank 0 have models with different names")
    wrong = [
        name
        for index, (name, _) in enumerate(mine)
        if len({theirs[index][1] for theirs in everyone}) > 1
    ]
    if wrong:
        place = [name for name, _ in mine].index(wrong[0])
        groups: dict[Any, list[int]] = {}
        for rank, theirs in enumerate(everyone):
            groups.setdefault(theirs[place][1], []).append(rank)
        camps = " against ".join(f"rank {', '.join(map(str, r))}" for r in groups.values())
        raise RuntimeError(
            f"replicas differ in {len(wrong)} of {len(mine)} tensors, first in {wrong[0]} "
            f"({camps}). Were they broadcast at the start, are all gradients averaged, and does "
            "every rank take the same optimizer steps?"
        )


def _fingerprint(tensor: Tensor) -> str:
    data = tensor.detach().cpu().contiguous()
    if data.is_sparse:
        data = data.to_dense()
    raw = data.view(-1).view(torch.uint8).numpy().tobytes() if data.numel() else b""
    return hashlib.sha256(raw + str((tuple(data.shape), data.dtype)).encode()).hexdigest()


@dataclass
class Comparison:
    """Gradients of data parallel training against those of one process.

    Attributes:
        factor: ours / reference, if it is the same number for all parameters; else None.
        max_error: largest absolute difference of any gradient element.
        worst: name of the parameter where it is.
        message: what that means.
    """

    factor: float | None
    max_error: float
    worst: str
    message: str

    def __str__(self) -> str:
        return self.message

    @property
    def equal(self) -> bool:
        return self.factor == 1.0


def check_against_single_process(
    model: nn.Module,
    batches: Sequence[Batch],
    loss_fn: Callable[[Any, Any], Tensor] = nn.functional.mse_loss,
    step: Callable[[nn.Module, Batch], Any] | None = None,
    tolerance: float = 1e-4,
) -> Comparison:
    """Compare your data parallel gradients with those of one process on all samples.

    Every rank calls this, with the same `batches`. Rank r trains on ``batches[r]`` with `step`;
    the reference is a copy of the bare model, one forward and backward over all of them together.

    Args:
        model: wrapped by any DDP class (or by none: then the local gradient is compared).
        batches: one ``(inputs, targets)`` of tensors per rank; sizes may differ.
        loss_fn: ``loss_fn(outputs, targets)``, a mean over samples, for the reference and `step`.
        step: your own forward, loss and backward, ``step(model, batch)``; by default
            ``loss_fn(model(inputs), targets).backward()``.
        tolerance: relative, for "equal".

    Returns:
        A `Comparison`; its message reads like "your gradients are 0.5x the single-process mean".
        The model's own gradients are those of `step`.

    Raises:
        ValueError: not one batch per rank.
    """
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if dist.is_initialized() else 0
    if len(batches) != world_size:
        raise ValueError(f"need one batch per rank, {world_size}, not {len(batches)}")
    bare = getattr(model, "module", model)
    reference = copy.deepcopy(bare)
    inputs, targets = (torch.cat([batch[part] for batch in batches]) for part in (0, 1))
    reference.zero_grad()
    loss_fn(reference(inputs), targets).backward()
    model.zero_grad()
    if step is None:
        loss_fn(model(batches[rank][0]), batches[rank][1]).backward()
    else:
        step(model, batches[rank])
    return _compare(bare, reference, tolerance)


def _compare(ours: nn.Module, reference: nn.Module, tolerance: float) -> Comparison:
    names, mine, right = [], [], []
    for (name, p), q in zip(ours.named_parameters(), reference.parameters(), strict=True):
        if p.grad is None and q.grad is None:
            continue
        names.append(name)
        mine.append(_dense(p))
        right.append(_dense(q))
    pairs = zip(mine, right, strict=True)
    errors = [(m - r).abs().max().item() if m.numel() else 0.0 for m, r in pairs]
    worst = max(range(len(errors)), key=errors.__getitem__)
    a, b = (torch.cat([t.flatten() for t in side]).double() for side in (mine, right))
    scale = b.abs().max().clamp_min(1e-300)
    factor = (a @ b / (b @ b).clamp_min(1e-300)).item()
    if (a - b).abs().max() <= tolerance * scale:
        return Comparison(
            1.0, errors[worst], names[worst], "your gradients are the single-process mean"
        )
    if (a - factor * b).abs().max() <= tolerance * scale:
        return Comparison(
            factor,
            errors[worst],
            names[worst],
            f"your gradients are {factor:.4g}x the single-process mean",
        )
    return Comparison(
        None,
        errors[worst],
        names[worst],
        f"your gradients are not a multiple of the single-process mean: they differ most in "
        f"{names[worst]}, by {errors[worst]:.3g}",
    )


def _dense(param: Tensor) -> Tensor:
    if param.grad is None:
        return torch.zeros_like(param)
    return param.grad.to_dense() if param.grad.is_sparse else param.grad.detach()
