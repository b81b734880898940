"""From one step to the next: gradients that are kept, set to zero, or not averaged yet."""

from __future__ import annotations

import torch

from ..models import add_gradient, linear, number
from ..record import case


@case(
    "D43",
    "zero_grad between steps",
    right=lambda n, rank: {"to none": [n, n, n], "to zero": [n, n, n]},
    wrong="a stale bucket is added once more: 4",
)
def zero_grad_between_steps(wrap, rank, world_size):
    found = {}
    for label, to_none in (("to none", True), ("to zero", False)):
        model = wrap(linear())
        found[label] = []
        for _ in range(3):
            found[label].append(add_gradient(model, rank))
            model.zero_grad(set_to_none=to_none)
    return found


@case(
    "D43",
    "a gradient set by hand before the backward",
    right=lambda n, rank: {"w": 10 + n},
    wrong="the 10 is lost or divided",
)
def gradient_set_by_hand(wrap, rank, world_size):
    model = wrap(linear())
    model.module.weight.grad = torch.full((1, 1), 10.0)
    return {"w": add_gradient(model, rank)}


@case(
    "D43",
    "a gradient that the user keeps does not change at the next step",
    right=lambda n, rank: {"kept": n, "next": 2 * n},
    wrong="the next step writes into it",
    not_for={"views": "documented: a gradient that is a view of its bucket is overwritten"},
)
def kept_gradient(wrap, rank, world_size):
    model = wrap(linear())
    add_gradient(model, rank)
    kept = model.module.weight.grad
    model.zero_grad(set_to_none=True)
    following = add_gradient(model, rank, 2)
    return {"kept": number(kept), "next": following}


@case(
    "D45",
    "no explicit call to reduce is needed before the step",
    right=lambda n, rank: {"after": 1 - 0.1 * n, "grad": n},
    wrong="parameters drift apart: 0.9 and 0.7",
)
def step_without_reducing(wrap, rank, world_size):
    model = wrap(linear())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    grad = add_gradient(model, rank)
    optimizer.step()
    return {"after": number(model.module.weight), "grad": grad}


@case(
    "D45",
    "reducing by hand after no_sync, and once too often",
    right=lambda n, rank: {"local": 2 * rank + 1, "reduced": n, "again": n},
    wrong="the call does nothing, or divides twice",
    not_for={"torch": "has no such call"},
)
def reduce_by_hand(wrap, rank, world_size):
    model = wrap(linear())
    with model.no_sync():
        local = add_gradient(model, rank)
    model.reduce_gradients()
    reduced = number(model.module.weight.grad)
    model.reduce_gradients()
    return {"local": local, "reduced": reduced, "again": number(model.module.weight.grad)}


@case(
    "D45",
    "a guarded optimizer refuses gradients that are only local",
    right=lambda n, rank: {"refused": True, "after": 1 - 0.1 * n},
    wrong="the step is taken: parameters drift apart, 0.9 and 0.7",
    not_for={"torch": "has no such guard"},
)
def guarded_optimizer(wrap, rank, world_size):
    model = wrap(linear())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.guard(optimizer)
    with model.no_sync():
        add_gradient(model, rank)
    try:
        optimizer.step()
        refused = False
    except RuntimeError as error:
        refused = "weight" in str(error) and f"rank {rank}" in str(error)
    model.reduce_gradients()
    optimizer.step()
    return {"refused": refused, "after": number(model.module.weight)}
