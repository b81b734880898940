"""Parameters that a backward does not reach, on some ranks or on all."""

from __future__ import annotations

import torch

from ..models import TwoLayers, gradients, number, x_of
from ..record import case


@case(
    "D01",
    "an unused parameter, two steps",
    right=lambda n, rank: {"first": {"a.weight": n, "b.weight": None}, "second": n},
    wrong="an error at the second step that names nobody",
)
def unused_parameter(wrap, rank, world_size):
    model = wrap(TwoLayers())
    model(x_of(rank), "a").sum().backward()
    first = gradients(model)
    model.zero_grad()
    model(x_of(rank), "a").sum().backward()
    return {"first": first, "second": number(model.module.a.weight.grad)}


@case(
    "D01",
    "an unused parameter is named on request",
    raises=(r"b\.weight", r"rank", r"error_on_unused"),
    wrong="silence, or an error that names another parameter or only an index",
    not_for={"torch": "has no such option"},
)
def unused_parameter_refused(wrap, rank, world_size):
    model = wrap(TwoLayers(), error_on_unused=True)
    model(x_of(rank), "a").sum().backward()
    return gradients(model)


@case(
    "D02",
    "an unused parameter, the last step",
    right=lambda n, rank: {"a.weight": n, "b.weight": None, "after": 1 - 0.1 * n},
    wrong="local gradients 1 and 3: the bucket never completes, and the replicas part for ever",
)
def unused_parameter_last_step(wrap, rank, world_size):
    model = wrap(TwoLayers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x_of(rank), "a").sum().backward()
    optimizer.step()
    return gradients(model) | {"after": number(model.module.a.weight)}


def head_without_loss(wrap, rank, **options):
    class TwoHeads(TwoLayers):
        def forward(self, x):
            return self.a(x), self.b(x)

    model = wrap(TwoHeads(), **options)
    model(x_of(rank))[0].sum().backward()
    first = gradients(model)
    model.zero_grad()
    model(x_of(rank))[0].sum().backward()
    return {"first": first, "second": gradients(model)}


def only_a(n, rank):
    return dict.fromkeys(("first", "second"), {"a.weight": n, "b.weight": None})


@case(
    "D20",
    "a head is returned but is not in the loss",
    right=only_a,
    wrong="local gradients 1 and 3 at the first step, an error at the second",
)
def head_not_in_loss(wrap, rank, world_size):
    return head_without_loss(wrap, rank)


@case(
    "D20",
    "a head is returned but is not in the loss, with find_unused_parameters",
    right=only_a,
    wrong="a gradient of zeros for b, or an error",
)
def head_not_in_loss_found(wrap, rank, world_size):
    return head_without_loss(wrap, rank, find_unused_parameters=True)


@case(
    "D21",
    "frozen when wrapped, trained later",
    right=lambda n, rank: {"a.weight": n, "b.weight": n},
    wrong="b keeps its local gradient, 1 and 3",
)
def unfrozen_after_wrapping(wrap, rank, world_size):
    inner = TwoLayers()
    inner.b.weight.requires_grad_(False)
    model = wrap(inner)
    model(x_of(rank), "ab").sum().backward()
    model.zero_grad()
    inner.b.weight.requires_grad_(True)
    model(x_of(rank), "ab").sum().backward()
    return gradients(model)


@case(
    "D21",
    "trained when wrapped, frozen later",
    right=lambda n, rank: {"a.weight": n, "b.weight": None},
    wrong="an error, a hang, or a gradient for b",
)
def frozen_after_wrapping(wrap, rank, world_size):
    inner = TwoLayers()
    model = wrap(inner)
    model(x_of(rank), "ab").sum().backward()
    model.zero_grad()
    inner.b.weight.requires_grad_(False)
    model(x_of(rank), "ab").sum().backward()
    return gradients(model)


@case(
    "D25",
    "a parameter that no rank uses stays where it is",
    right=lambda n, rank: {"grad": None, "b": 1.0},
    wrong="a gradient of zeros, which lets weight decay move b to 0.99",
)
def unused_everywhere(wrap, rank, world_size):
    model = wrap(TwoLayers(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    model(x_of(rank), "a").sum().backward()
    optimizer.step()
    return {"grad": number(model.module.b.weight.grad), "b": number(model.module.b.weight)}


@case(
    "D25",
    "rank 0 uses a, the others use b",
    right=lambda n, rank: {"a.weight": 1 / n, "b.weight": (n * n - 1) / n},
    wrong="sums over the ranks that used it, or local gradients",
)
def used_on_some_ranks(wrap, rank, world_size):
    model = wrap(TwoLayers(), find_unused_parameters=True)
    model(x_of(rank), "a" if rank == 0 else "b").sum().backward()
    return gradients(model)
