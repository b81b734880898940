"""What is wrapped: replicas that differ, modules with nothing to train, parts replaced later."""

from __future__ import annotations

import torch
from torch import nn

from ..models import TwoLayers, gradients, linear, number, x_of
from ..record import case


@case(
    "D23",
    "a layer replaced after wrapping is named",
    raises=(r"b\.weight", r"wrapped"),
    wrong="local gradients for a and b, without a word",
)
def layer_replaced(wrap, rank, world_size):
    inner = TwoLayers()
    model = wrap(inner)
    inner.b = linear()
    model(x_of(rank), "ab").sum().backward()
    return gradients(model)


@case(
    "D27",
    "replicas that start different start equal",
    right=lambda n, rank: {"a": 1.0, "buffer": 7.0, "counter": 3, "b": 1.0},
    wrong="each rank keeps its own: 1 and 5",
)
def different_start(wrap, rank, world_size):
    inner = TwoLayers()
    nn.init.constant_(inner.a.weight, 1 + 4 * rank)
    inner.register_buffer("scale", torch.tensor([7.0 + rank]))
    inner.register_buffer("counter", torch.tensor(3 + rank))
    inner.b.weight.requires_grad_(False).add_(rank)
    wrap(inner)
    return {
        "a": number(inner.a.weight),
        "buffer": number(inner.scale),
        "counter": inner.counter.item(),
        "b": number(inner.b.weight),
    }


def wrap_differing(wrap, rank, differ):
    """On the last rank the model differs; no rank may get as far as a step."""
    import torch.distributed as dist

    inner = TwoLayers()
    if rank == dist.get_world_size() - 1:
        inner = differ(inner) or inner
    model = wrap(inner)
    model(x_of(rank), "a").sum().backward()
    return {"trained on": True}


@case(
    "D28",
    "another shape on every rank",
    raises=(r"weight", r"\[?1, 1\]?", r"\[?1, 2\]?", r"rank 0", r"rank 1"),
    wrong="one rank is told an index, the other only that a connection was closed",
)
def shape_by_rank(wrap, rank, world_size):
    model = wrap(nn.Linear(1 + rank, 1))
    model(torch.ones(1, 1 + rank)).sum().backward()
    return {"trained on": True}


@case(
    "D28",
    "two layers on rank 0, one on the others",
    raises=(r"rank 0", r"rank 1", r"a\.weight|b\.weight"),
    wrong="one rank is told an index, the other only that a connection was closed",
)
def fewer_parameters(wrap, rank, world_size):
    wrap(TwoLayers() if rank == 0 else linear())
    return {"trained on": True}


@case(
    "D28",
    "the last rank has one parameter more",
    raises=(r"extra", r"rank 0", r"rank [12]"),
    wrong="training goes on, or a hang",
)
def one_more_parameter(wrap, rank, world_size):
    def differ(inner):
        inner.extra = nn.Parameter(torch.ones(1))

    return wrap_differing(wrap, rank, differ)


@case(
    "D28",
    "the last rank has another type",
    raises=(r"b\.weight", r"float32", r"float64", r"rank 0", r"rank [12]"),
    wrong="an abort, or numbers read as another type",
)
def other_dtype(wrap, rank, world_size):
    def differ(inner):
        inner.b = linear(dtype=torch.float64)

    return wrap_differing(wrap, rank, differ)


@case(
    "D28",
    "the last rank has another name",
    raises=(r"b\.weight", r"c\.weight", r"rank 0", r"rank [12]"),
    wrong="training goes on with whatever stands in the same place",
)
def other_name(wrap, rank, world_size):
    def differ(inner):
        inner.c = inner.b
        del inner.b

    return wrap_differing(wrap, rank, differ)


@case(
    "D28",
    "the last rank has another order",
    raises=(r"a\.weight", r"b\.weight", r"rank 0", r"rank [12]"),
    wrong="a's gradient is averaged with b's",
)
def other_order(wrap, rank, world_size):
    def differ(inner):
        a = inner.a
        del inner.a
        inner.a = a

    return wrap_differing(wrap, rank, differ)


@case(
    "D28",
    "the last rank has a frozen parameter",
    raises=(r"b\.weight", r"requires_grad|frozen|trainable", r"rank 0", r"rank [12]"),
    wrong="buckets of different sizes meet: a hang, an abort or a wrong number",
)
def frozen_on_one_rank(wrap, rank, world_size):
    def differ(inner):
        inner.b.weight.requires_grad_(False)

    return wrap_differing(wrap, rank, differ)


@case(
    "D40",
    "a module without parameters",
    raises=(r"ReLU", r"no parameter|nothing to train|requires_grad|trainable"),
    wrong="StopIteration, or an error that does not name the module",
)
def nothing_to_train(wrap, rank, world_size):
    wrap(nn.ReLU())
    return {"wrapped": True}


@case(
    "D40",
    "a module whose parameters are all frozen",
    raises=(r"Linear", r"no parameter|nothing to train|requires_grad|trainable"),
    wrong="an error that does not name the module",
)
def all_frozen(wrap, rank, world_size):
    wrap(linear().requires_grad_(False))
    return {"wrapped": True}


@case(
    "D51",
    "a lazy module",
    raises=(r"\bweight\b", r"batch|forward"),
    wrong="an error that does not say which parameter",
)
def lazy_parameter(wrap, rank, world_size):
    wrap(nn.LazyLinear(1))
    return {"wrapped": True}
