"""What lies between the model's outputs and the loss: graphs that are not one straight line."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..models import TwoLayers, gradients, linear, number, x_of
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


@dataclasses.dataclass
class Record:
    loss: torch.Tensor
    steps: int = 3


class Opaque:
    """Holds a tensor in a way that no container protocol shows."""

    def __init__(self, loss):
        self.loss = loss


SHAPES = {
    "dict": (
        lambda y: {"n": 3, "none": None, "nested": [(y.detach(),)], "loss": y},
        lambda out: out["loss"],
    ),
    "dataclass": (Record, lambda out: out.loss),
    "opaque": (Opaque, lambda out: out.loss),
}


def returning(wrap, rank, shape):
    pack, loss_of = SHAPES[shape]

    class Returns(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = linear()

        def forward(self, x):
            self.__dict__["returned"] = pack(self.layer(x))
            return self.returned

    model = wrap(Returns(), find_unused_parameters=True)
    out = model(x_of(rank))
    loss_of(out).sum().backward()
    found = {"w": number(model.module.layer.weight.grad)}
    return found, out is model.module.returned


def average(n, rank):
    return {"w": n}


@case("D19", "forward returns a dict", right=average, wrong="local gradients")
def returns_dict(wrap, rank, world_size):
    return returning(wrap, rank, "dict")[0]


@case("D19", "forward returns a dataclass", right=average, wrong="local gradients")
def returns_dataclass(wrap, rank, world_size):
    return returning(wrap, rank, "dataclass")[0]


@case(
    "D19",
    "forward returns an object of the user's own",
    right=average,
    wrong="an error about a parameter marked ready twice",
)
def returns_opaque(wrap, rank, world_size):
    return returning(wrap, rank, "opaque")[0]


@case(
    "D19",
    "forward's output comes back as the very same object",
    right=lambda n, rank: dict.fromkeys(SHAPES, True),
    wrong="a copy of the container",
    not_for={"torch": "builds the containers anew when it looks for unused parameters"},
)
def returns_same_object(wrap, rank, world_size):
    return {shape: returning(wrap, rank, shape)[1] for shape in SHAPES}
