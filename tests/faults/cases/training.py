"""Around the step: clipping, norms, optimizers, hooks, uneven inputs."""

from __future__ import annotations

import torch
from torch import nn

import minddp

from ..models import Weight, linear, number, x_of
from ..record import case


@case(
    "D15",
    "the last rank has one batch more, inside join",
    right=lambda n, rank: {
        "grads": [n, 4 / n] if rank == n - 1 else [n],
        "weight": 1 - 0.1 * (n + 4 / n),
    },
    wrong="a hang, an extra gradient of 4, or ranks that end with different weights",
)
def uneven_inputs(wrap, rank, world_size):
    model = wrap(linear())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = [x_of(rank)] + [torch.tensor([[4.0]])] * (rank == world_size - 1)
    grads = []
    with model.join():
        for x in inputs:
            optimizer.zero_grad()
            model(x).sum().backward()
            grads.append(number(model.module.weight.grad))
            optimizer.step()
    return {"grads": grads, "weight": number(model.module.weight)}


@case(
    "D24",
    "an optimizer built before wrapping",
    right=lambda n, rank: {"w": 1 - 0.1 * n, "same object": True},
    wrong="the weight does not move: the wrapper made new parameters",
)
def optimizer_before_wrapping(wrap, rank, world_size):
    inner = linear()
    weight = inner.weight
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    model = wrap(inner)
    model(x_of(rank)).sum().backward()
    optimizer.step()
    return {"w": number(inner.weight), "same object": next(model.parameters()) is weight}


def two_gradients(rank: int) -> torch.Tensor:
    """Local gradients (2, 0), (0, 1), (0, 3), ..."""
    return torch.tensor([2.0, 0.0] if rank == 0 else [0.0, 2.0 * rank - 1])


def clipped(n: int) -> list[float]:
    mean = [2 / n, (n - 1) ** 2 / n]
    norm = (mean[0] ** 2 + mean[1] ** 2) ** 0.5
    return [value / norm for value in mean]


@case(
    "D37",
    "clipping the norm after backward",
    right=lambda n, rank: {"w": clipped(n)},
    wrong="the average of clipped gradients: (0.5, 0.5)",
)
def clip_after_backward(wrap, rank, world_size):
    model = wrap(Weight(torch.ones(2)))
    model(two_gradients(rank)).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return {"w": number(model.module.w.grad)}


@case(
    "D37",
    "a tensor hook that clamps at 2 sees the local gradient",
    right=lambda n, rank: {"w": (1 + 2 * (n - 1)) / n},
    wrong="2.0: the hook ran on the average",
)
def clamp_in_hook(wrap, rank, world_size):
    inner = linear()
    inner.weight.register_hook(lambda grad: grad.clamp(max=2))
    model = wrap(inner)
    model(x_of(rank)).sum().backward()
    return {"w": number(inner.weight.grad)}


@case(
    "D38",
    "the norm of averaged gradients is global already",
    right=lambda n, rank: {"norm": 0.4 * n, "collectives": 0},
    wrong="summed over ranks once more: 0.8 times the root of 2",
)
def gradient_norm(wrap, rank, world_size):
    model = wrap(linear())
    model(x_of(rank, 0.4)).sum().backward()
    with minddp.record() as recording:
        norm = float(minddp.global_grad_norm(model.parameters()))
    return {"norm": norm, "collectives": len(recording.events)}


@case(
    "D39",
    "an overflow on rank 0 reaches every rank",
    right=lambda n, rank: {"w": float("inf")},
    wrong="only rank 0 skips its step",
)
def overflow_on_one_rank(wrap, rank, world_size):
    model = wrap(linear())
    (model(x_of(rank)).sum() * (float("inf") if rank == 0 else 1)).backward()
    return {"w": number(model.module.weight.grad)}


@case(
    "D42",
    "a user's hook on the parameter sees the local gradient",
    right=lambda n, rank: {"seen": [2 * rank + 1], "w": n},
    wrong="the hook is not called, or the average is lost",
)
def user_hook(wrap, rank, world_size):
    inner = linear()
    seen = []
    inner.weight.register_post_accumulate_grad_hook(lambda p: seen.append(number(p.grad)))
    model = wrap(inner)
    seen.clear()
    model(x_of(rank)).sum().backward()
    return {"seen": seen, "w": number(inner.weight.grad)}


@case(
    "D42",
    "an optimizer that steps inside a hook is refused, or runs after the average",
    right=lambda n, rank: {"refused": True, "or": None},
    wrong="each replica steps with its own gradient: 0.9 and 0.7",
)
def optimizer_in_hook(wrap, rank, world_size):
    inner = linear()
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)

    def step(parameter):
        optimizer.step()
        optimizer.zero_grad()

    inner.weight.register_post_accumulate_grad_hook(step)
    try:
        model = wrap(inner)
        model(x_of(rank)).sum().backward()
    except RuntimeError as error:
        return {"refused": "weight" in str(error), "or": None}
    stepped = number(inner.weight)
    right = abs(stepped - (1 - 0.1 * world_size)) < 1e-6
    return {"refused": right, "or": None if right else stepped}
