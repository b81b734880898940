"""torch.compile, inside and outside of the wrapper."""

from __future__ import annotations

import torch

from ..models import TwoLayers, gradients, linear, number, x_of
from ..record import case

NO_TINY_BUCKETS = {
    "torch, one per parameter": "the compiler's own plan of buckets asks for larger ones there"
}
ONCE = NO_TINY_BUCKETS | dict.fromkeys(
    ("naive", "flat", "legacy", "views", "overlapped, one per parameter"),
    "takes seconds; where the average is made does not matter to it",
)


def three_steps(model, weight, rank):
    found = []
    for times in (1, 2, 3):
        model.zero_grad()
        model(x_of(rank, times)).sum().backward()
        found.append(number(weight.grad))
    return {"grads": found}


def averages(n, rank):
    return {"grads": [n, 2 * n, 3 * n]}


def compile_wrapped(wrap, rank, backend):
    torch._dynamo.reset()
    inner = linear()
    return three_steps(torch.compile(wrap(inner), backend=backend), inner.weight, rank)


def wrap_compiled(wrap, rank, backend):
    torch._dynamo.reset()
    inner = linear()
    return three_steps(wrap(torch.compile(inner, backend=backend)), inner.weight, rank)


@case(
    "D50",
    "compile(wrap(model)), traced by dynamo",
    right=averages,
    wrong="local gradients, silently",
    compiles=True,
    not_for=NO_TINY_BUCKETS,
)
def compiled_outside(wrap, rank, world_size):
    return compile_wrapped(wrap, rank, "eager")


@case(
    "D50",
    "wrap(compile(model)), traced by dynamo",
    right=averages,
    wrong="local gradients, silently",
    compiles=True,
    not_for=NO_TINY_BUCKETS,
)
def compiled_inside(wrap, rank, world_size):
    return wrap_compiled(wrap, rank, "eager")


@case(
    "D50",
    "compile(wrap(model)), with AOTAutograd",
    right=averages,
    wrong="local gradients, silently",
    compiles=True,
    not_for=ONCE,
)
def compiled_outside_aot(wrap, rank, world_size):
    return compile_wrapped(wrap, rank, "aot_eager")


@case(
    "D50",
    "wrap(compile(model)), with AOTAutograd",
    right=averages,
    wrong="local gradients, silently",
    compiles=True,
    not_for=ONCE,
)
def compiled_inside_aot(wrap, rank, world_size):
    return wrap_compiled(wrap, rank, "aot_eager")


@case(
    "D50",
    "wrap(compile(model)), rank 0 uses a, the others use b",
    right=lambda n, rank: {"a.weight": 1 / n, "b.weight": (n * n - 1) / n},
    wrong="local gradients, silently",
    compiles=True,
    not_for=ONCE,
)
def compiled_inside_used_on_some(wrap, rank, world_size):
    torch._dynamo.reset()
    inner = TwoLayers()
    model = wrap(torch.compile(inner, backend="eager"), find_unused_parameters=True)
    model(x_of(rank), "a" if rank == 0 else "b").sum().backward()
    return gradients(inner)
