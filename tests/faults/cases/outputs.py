"""What forward returns: containers, dataclasses, objects of the user's own."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from ..models import linear, number, x_of
from ..record import case


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
