"""Several backwards before one step, with and without `no_sync`."""

from __future__ import annotations

import warnings

from ..models import add_gradient, linear, number, x_of
from ..record import case


@case(
    "D03",
    "forward outside no_sync, backward inside: the backward decides",
    right=lambda n, rank: {"inside": 2 * rank + 1, "next": 2 * n},
    wrong="the forward decides and nobody says so",
    torch_right=lambda n, rank: {"inside": n, "next": 2 * n},
)
def backward_inside_no_sync(wrap, rank, world_size):
    model = wrap(linear())
    loss = model(x_of(rank)).sum()
    with model.no_sync():
        loss.backward()
    return {"inside": number(model.module.weight.grad), "next": add_gradient(model, rank)}


@case(
    "D03",
    "forward inside no_sync, backward outside: averaged, and one warning",
    right=lambda n, rank: {"first": n, "second": n, "warnings": 1},
    wrong="gradients stay local, 1 and 3, without a word",
)
def forward_inside_no_sync(wrap, rank, world_size):
    model = wrap(linear())
    seen = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")  # the same warning from the same line once
        for _ in range(2):
            model.zero_grad()
            with model.no_sync():
                loss = model(x_of(rank)).sum()
            loss.backward()
            seen.append(number(model.module.weight.grad))
    about = [w for w in caught if "no_sync" in str(w.message)]
    return {"first": seen[0], "second": seen[1], "warnings": len(about)}


@case(
    "D03",
    "a step inside no_sync, then one outside",
    right=lambda n, rank: {"inside": 2 * rank + 1, "after": 2 * n + 1},
    wrong="only the last micro-batch is averaged",
)
def whole_step_inside_no_sync(wrap, rank, world_size):
    model = wrap(linear())
    with model.no_sync():
        inside = add_gradient(model, rank)
    model(x_of(rank) + 1).sum().backward()
    return {"inside": inside, "after": number(model.module.weight.grad)}


@case(
    "D04",
    "two steps without zeroing and without no_sync",
    right=lambda n, rank: {"first": n, "second": 3 * n},
    wrong="the first average is divided again: 4 instead of 6",
)
def accumulate_without_no_sync(wrap, rank, world_size):
    model = wrap(linear())
    return {"first": add_gradient(model, rank), "second": add_gradient(model, rank, 2)}


@case(
    "D07",
    "two backwards through one graph",
    right=lambda n, rank: {"w": 2 * n},
    wrong="the average plus the local gradient: 3 and 5",
)
def backward_twice(wrap, rank, world_size):
    model = wrap(linear())
    out = model(x_of(rank)).sum()
    out.backward(retain_graph=True)
    out.backward()
    return {"w": number(model.module.weight.grad)}


@case(
    "D44",
    "an exception leaves no_sync",
    right=lambda n, rank: {"w": n},
    wrong="synchronisation stays off: 1 and 3",
)
def exception_in_no_sync(wrap, rank, world_size):
    model = wrap(linear())
    try:
        with model.no_sync():
            raise ValueError("a bad batch")
    except ValueError:
        pass
    return {"w": add_gradient(model, rank)}


@case(
    "D44",
    "no_sync nests",
    right=lambda n, rank: {"between": 2 * (2 * rank + 1), "after": 3 * n},
    wrong="the inner exit turns synchronisation on inside the outer: 3 and 5 would be averages",
)
def nested_no_sync(wrap, rank, world_size):
    model = wrap(linear())
    with model.no_sync():
        with model.no_sync():
            add_gradient(model, rank)
        between = add_gradient(model, rank)
    return {"between": between, "after": add_gradient(model, rank)}
