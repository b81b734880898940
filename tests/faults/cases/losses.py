"""What averaging makes of a loss: means of means, factors, sums."""

from __future__ import annotations

import torch

import minddp

from ..models import linear, number, x_of
from ..record import case


def samples(rank: int) -> torch.Tensor:
    """Rank r has 2r + 1 samples, each of them 2r + 1."""
    return x_of(rank).expand(2 * rank + 1, 1)


@case(
    "D16",
    "batches of unequal size and a mean loss: the mean of means",
    right=lambda n, rank: {"w": n},
    wrong="anything else: this is what averaging means, and it is not the global mean",
)
def mean_of_means(wrap, rank, world_size):
    model = wrap(linear())
    model(samples(rank)).mean().backward()
    return {"w": number(model.module.weight.grad)}


@case(
    "D16",
    "batches of unequal size and weighted_loss: the global mean",
    right=lambda n, rank: {
        "w": sum((2 * r + 1) ** 2 for r in range(n)) / sum(2 * r + 1 for r in range(n))
    },
    wrong="the mean of means, 2.0 instead of 2.5",
)
def global_mean(wrap, rank, world_size):
    model = wrap(linear())
    batch = samples(rank)
    minddp.weighted_loss(model(batch).sum(), len(batch)).backward()
    return {"w": number(model.module.weight.grad)}


def compared(wrap, rank, world_size, loss_of, step=None):
    """What `check_against_single_process` says of the gradients."""
    batches = [(x_of(peer), torch.zeros(1, 1)) for peer in range(world_size)]
    return str(minddp.check_against_single_process(wrap(linear()), batches, loss_of, step))


@case(
    "D17",
    "a loss divided by the number of ranks once more is found out",
    right=lambda n, rank: {"says": f"your gradients are {1 / n:.4g}x the single-process mean"},
    wrong="no word of the factor",
)
def divided_twice(wrap, rank, world_size):
    def step(model, batch):
        (model(batch[0]).mean() / world_size).backward()

    return {"says": compared(wrap, rank, world_size, lambda out, _: out.mean(), step)}


@case(
    "D17",
    "the average is found to be a fraction of the sum that was expected",
    right=lambda n, rank: {"says": f"your gradients are {1 / n:.4g}x the single-process mean"},
    wrong="no word of the factor",
)
def sum_expected(wrap, rank, world_size):
    return {"says": compared(wrap, rank, world_size, lambda out, _: out.sum())}


@case(
    "D17",
    "a mean over equal batches is found to be right",
    right=lambda n, rank: {"says": "your gradients are the single-process mean"},
    wrong="a false alarm",
)
def mean_expected(wrap, rank, world_size):
    return {"says": compared(wrap, rank, world_size, lambda out, _: out.mean())}
