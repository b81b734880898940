"""Ranks that are not at the same place, or have not the same in hand."""

from __future__ import annotations

import gc

import torch
import torch.distributed as dist

from ..models import TwoLayers, gradients, linear, number, x_of
from ..record import case


@case(
    "D15",
    "the last rank has one batch more, without join: it is told which step",
    right=lambda n, rank: {"left": True} if rank < n - 1 else None,
    raises=(r"rank [12]", r"step [23]", r"join"),
    wrong="a hang, or an error that names neither rank nor step",
)
def uneven_without_join(wrap, rank, world_size):
    model = wrap(linear())
    model(x_of(rank)).sum().backward()
    if rank < world_size - 1:
        del model
        gc.collect()
        dist.destroy_process_group()
        return {"left": True}
    model(torch.tensor([[4.0]])).sum().backward()
    return {"left": False}


def one_after_the_other(wrap, rank, first, second):
    """Rank 0 trains the first model before the second, the others the second before the first."""
    models = [wrap(first, debug=True), wrap(second, debug=True)]
    order = models if rank == 0 else models[::-1]
    for model in order:
        times = 1 if model is models[0] else 10
        dtype = next(model.parameters()).dtype
        model(x_of(rank, times, dtype)).sum().backward()
    return {"grads": [number(next(model.parameters()).grad) for model in models]}


@case(
    "D47",
    "two models trained in another order on rank 0",
    raises=(r"rank 0", r"rank 1", r"different"),
    wrong="one model's gradients are averaged with the other's, silently: 15.5 and 6.5",
)
def swapped(wrap, rank, world_size):
    return one_after_the_other(wrap, rank, linear(), linear())


@case(
    "D47",
    "two models of unequal size trained in another order on rank 0",
    raises=(r"rank 0", r"rank 1", r"different"),
    wrong="one rank goes on as if all were well, the other fails",
)
def swapped_sizes(wrap, rank, world_size):
    return one_after_the_other(wrap, rank, linear(), torch.nn.Linear(1, 3))


@case(
    "D47",
    "a float32 and a float64 model trained in another order on rank 0",
    raises=(r"rank 0", r"rank 1", r"different"),
    wrong="an abort without a Python traceback",
)
def swapped_dtypes(wrap, rank, world_size):
    return one_after_the_other(wrap, rank, linear(), linear(dtype=torch.float64))


@case(
    "D28",
    "the last rank alone freezes a parameter after wrapping",
    raises=(r"rank 0", r"rank [12]", r"different"),
    wrong="buckets of different sizes meet: a hang, an abort or a wrong number",
)
def frozen_later_on_one_rank(wrap, rank, world_size):
    inner = TwoLayers()
    model = wrap(inner, debug=True)
    model(x_of(rank), "ab").sum().backward()
    model.zero_grad()
    if rank == world_size - 1:
        inner.b.weight.requires_grad_(False)
    model(x_of(rank), "ab").sum().backward()
    return gradients(model)
