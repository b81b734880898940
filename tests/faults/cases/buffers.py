"""Buffers: what travels before a forward, what must not, and what a forward may not disturb."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from ..models import linear, number, x_of
from ..record import case


class Scaled(nn.Module):
    """A layer whose output is multiplied by a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear()
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x):
        return self.layer(x) * self.scale


@case(
    "D12",
    "two forwards before one backward, with a buffer",
    right=lambda n, rank: {"w": 3 * n},
    wrong="an error: the buffer that backward needs was modified in place",
)
def buffer_between_forwards(wrap, rank, world_size):
    model = wrap(Scaled())
    (model(x_of(rank)) + model(x_of(rank, 2))).sum().backward()
    return {"w": number(model.module.layer.weight.grad)}


class Normed(nn.Module):
    """BatchNorm, then one weight: a batch of x - 1 and x + 1 becomes -1 and 1."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1, eps=1e-12)
        self.layer = linear()

    def forward(self, x):
        return self.layer(self.norm(torch.cat([x - 1, x + 1])))


@case(
    "D12",
    "two forwards before one backward, with BatchNorm",
    right=lambda n, rank: {"w": 3 * n},
    wrong="an error: the running mean that backward needs was modified in place",
)
def batch_norm_between_forwards(wrap, rank, world_size):
    model = wrap(Normed())
    upper = model(x_of(rank))[1] + 2 * model(x_of(rank, 5))[1]
    (upper * x_of(rank)).sum().backward()
    return {"w": number(model.module.layer.weight.grad)}


def running_mean_after(wrap, rank, steps, **options):
    """BatchNorm on rank r sees the batch {2r, 2r + 2}, whose mean is 2r + 1."""
    model = wrap(nn.BatchNorm1d(1), **options)
    means = []
    for _ in range(steps):
        model(torch.tensor([[2.0 * rank], [2.0 * rank + 2]])).sum().backward()
        means.append(number(model.module.running_mean))
    counter = model.module.num_batches_tracked
    return {"means": means, "batches": counter.item(), "integer": counter.dtype == torch.int64}


@case(
    "D13",
    "BatchNorm statistics, broadcast from rank 0 before each forward",
    right=lambda n, rank: {
        "means": [0.1 * (2 * rank + 1), 0.09 + 0.1 * (2 * rank + 1)],
        "batches": 2,
        "integer": True,
    },
    wrong="each rank keeps its own: 0.19 and 0.57",
)
def buffers_broadcast(wrap, rank, world_size):
    return running_mean_after(wrap, rank, 2)


@case(
    "D13",
    "BatchNorm statistics, averaged over the ranks",
    right=lambda n, rank: {"means": [0.1 * n], "batches": 1, "integer": True},
    wrong="rank 0's alone, 0.1, or a counter that became a fraction",
    not_for={"torch": "has no such option"},
)
def buffers_averaged(wrap, rank, world_size):
    return running_mean_after(wrap, rank, 1, buffers="average")


@case(
    "D13",
    "BatchNorm statistics, left alone",
    right=lambda n, rank: {
        "means": [0.1 * (2 * rank + 1), 0.19 * (2 * rank + 1)],
        "batches": 2,
        "integer": True,
    },
    wrong="rank 0's on every rank",
)
def buffers_off(wrap, rank, world_size):
    return running_mean_after(wrap, rank, 2, broadcast_buffers=False)


def rank_0_only(wrap, rank, training, with_grad):
    model = wrap(nn.BatchNorm1d(1, momentum=0.0)).train(training)
    forwards = 0
    if rank == 0:
        with torch.set_grad_enabled(with_grad):
            for _ in range(2):
                model(torch.tensor([[1.0], [3.0]]))
                forwards += 1
    dist.barrier()
    return {"forwards": forwards}


@case(
    "D14",
    "rank 0 evaluates alone",
    right=lambda n, rank: {"forwards": 2 if rank == 0 else 0},
    wrong="a hang: the forward broadcasts buffers and nobody answers",
)
def evaluation_on_rank_0(wrap, rank, world_size):
    return rank_0_only(wrap, rank, training=False, with_grad=False)


@case(
    "D14",
    "rank 0 runs forwards without gradients, in training mode",
    right=lambda n, rank: {"forwards": 2 if rank == 0 else 0},
    wrong="a hang: the forward broadcasts buffers and nobody answers",
)
def no_grad_on_rank_0(wrap, rank, world_size):
    return rank_0_only(wrap, rank, training=True, with_grad=False)


@case(
    "D14",
    "rank 0 evaluates alone and does not switch gradients off",
    right=lambda n, rank: {"forwards": 2 if rank == 0 else 0},
    wrong="a hang: the forward broadcasts buffers and nobody answers",
)
def evaluation_with_grad_on_rank_0(wrap, rank, world_size):
    return rank_0_only(wrap, rank, training=False, with_grad=True)
