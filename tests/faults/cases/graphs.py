"""Graphs that are not one straight line from the model's outputs to the loss."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..models import TwoLayers, gradients, x_of
from ..record import case


@case(
    "D06",
    "two forwards, one backward, each forward with another layer",
    right=lambda n, rank: {"a.weight": n, "b.weight": n},
    wrong="an error about a parameter marked ready twice",
)
def two_forwards_one_backward(wrap, rank, world_size):
    model = wrap(TwoLayers(), find_unused_parameters=True)
    (model(x_of(rank), "a").sum() + model(x_of(rank), "b").sum()).backward()
    return gradients(model)


class Checkpointed(TwoLayers):
    """b(a(x)), each layer computed again during backward."""

    def forward(self, x):
        hidden = checkpoint(self.a, x, use_reentrant=True)
        return checkpoint(self.b, hidden, use_reentrant=True)


def checkpointed(wrap, rank, **options):
    model = wrap(Checkpointed(), **options)
    found = []
    for _ in range(2):
        model.zero_grad()
        model(x_of(rank).requires_grad_()).sum().backward()
        found.append(gradients(model))
    return {"first": found[0], "second": found[1]}


def both_steps(n, rank):
    return dict.fromkeys(("first", "second"), {"a.weight": n, "b.weight": n})


@case(
    "D09",
    "re-entrant checkpointing",
    right=both_steps,
    wrong="the inner backward ends the step before the outer one is done",
)
def reentrant_checkpoint(wrap, rank, world_size):
    return checkpointed(wrap, rank)


@case(
    "D09",
    "re-entrant checkpointing with find_unused_parameters",
    right=both_steps,
    wrong="an error: the graph that is walked ends at the checkpoint",
)
def reentrant_checkpoint_found(wrap, rank, world_size):
    return checkpointed(wrap, rank, find_unused_parameters=True)


class SharedAndCheckpointed(TwoLayers):
    """a(a(x)), computed again during backward: a's gradient arrives twice in one backward."""

    def forward(self, x):
        hidden = checkpoint(self.a, x, use_reentrant=True)
        return checkpoint(self.a, hidden, use_reentrant=True) + self.b(x)


def shared_and_checkpointed(wrap, rank):
    model = wrap(SharedAndCheckpointed())
    found = []
    for _ in range(3):
        model.zero_grad()
        model(x_of(rank).requires_grad_()).sum().backward()
        found.append(gradients(model))
    return {"steps": found}


@case(
    "D09",
    "re-entrant checkpointing of a layer that is used twice",
    right=lambda n, rank: {"steps": [{"a.weight": 2 * n, "b.weight": n}] * 3},
    wrong="an error, or the first of the two gradients alone is averaged",
    not_for={"overlapped, later step": "it must be so from the first step on: see the next case"},
)
def reentrant_checkpoint_shared(wrap, rank, world_size):
    return shared_and_checkpointed(wrap, rank)


@case(
    "D09",
    "re-entrant checkpointing of a layer that is used twice, but not in the first step",
    raises=(r"a\.weight", r"rank \d", r"use_reentrant=False"),
    wrong="the second gradient is lost, or stays local",
    not_for=dict.fromkeys(
        ("naive", "flat", "legacy", "overlapped, first step", "torch"),
        "the gradients are sent after both have arrived, or never meant to arrive twice",
    ),
)
def reentrant_checkpoint_shared_later(wrap, rank, world_size):
    return shared_and_checkpointed(wrap, rank)


class Square(nn.Module):
    """y = w x^2 + b."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))
        self.b = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.w * x * x + self.b


def mean_square(n: int) -> float:
    return sum((2 * rank + 1) ** 2 for rank in range(n)) / n


@case(
    "D18",
    "a gradient penalty does not reach the bias",
    right=lambda n, rank: {"w": 8 * mean_square(n), "b": None},
    wrong="8 and 72: the bucket waits for b and is never reduced",
)
def gradient_penalty(wrap, rank, world_size):
    model = wrap(Square())
    x = x_of(rank).requires_grad_()
    (gx,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (gx**2).sum().backward()
    return gradients(model)
