"""Small pieces of a data parallel training loop that are easy to get wrong."""

from __future__ import annotations

import random
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor


def weighted_loss(
    local_sum: Tensor, local_count: int | Tensor, group: dist.ProcessGroup | None = None
) -> Tensor:
    """A loss for backward whose averaged gradients are those of the mean over *all* samples.

    DDP averages over ranks. The mean of per-rank means is the global mean only if all ranks have
    equally many samples (or tokens); with one sample on one rank and three on the other it is not.

    Args:
        local_sum: sum of this rank's sample losses, 0-dim, with its graph.
        local_count: number of samples in it, 0 or more.
        group: the ranks that are averaged over; the default group if None. One all-reduce.

    Returns:
        ``local_sum * world size / (count over all ranks)``, 0-dim, with its graph.

    Raises:
        ValueError: a negative count, or no sample on any rank.
    """
    count = torch.as_tensor(local_count, dtype=torch.float64, device=local_sum.device).clone()
    world_size = 1
    if dist.is_available() and dist.is_initialized():
        counts = [torch.zeros_like(count) for _ in range(dist.get_world_size(group))]
        dist.all_gather(counts, count, group=group)
        world_size, values = len(counts), [c.item() for c in counts]
    else:
        values = [count.item()]
    if min(values) < 0 or sum(values) == 0:
        raise ValueError(f"need counts of 0 or more, and one sample on some rank; got {values}")
    return local_sum * (world_size / sum(values))


def global_grad_norm(parameters: Iterable[Tensor], norm_type: float = 2.0) -> Tensor:
    """Norm of all gradients as one vector, 0-dim. It does not communicate, and must not: after DDP
    every rank holds the same averaged gradients, so its norm *is* the global one. Summing squared
    norms over ranks once more gives sqrt(N) times too much.

    Clip after backward (the reduction), never in a hook before it: the mean of clipped gradients is
    not the clipped mean."""
    gradients = [
        p.grad.coalesce().values() if p.grad.is_sparse else p.grad
        for p in parameters
        if p.grad is not None
    ]
    if not gradients:
        return torch.tensor(0.0)
    norms = [torch.linalg.vector_norm(grad, norm_type) for grad in gradients]
    total: Tensor = torch.linalg.vector_norm(
        torch.stack([n.to(norms[0]) for n in norms]), norm_type
    )
    return total


def seed_everything(seed: int, rank: int | None = None) -> int:
    """Seed random, numpy (if it is there) and torch, and return the seed used.

    Args:
        seed: 0 or more.
        rank: None for what must be *the same* on all ranks (initial weights, samplers); a rank for
            what must *differ* (dropout, augmentation): it is then added to the seed. So: call it
            without a rank before building the model, and with one before training.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed must be an integer of 0 or more, not {seed!r}")
    seed += 0 if rank is None else rank
    random.seed(seed)
    torch.manual_seed(seed)
    try:
        import numpy
    except ModuleNotFoundError:
        return seed
    numpy.random.seed(seed % 2**32)
    return seed
