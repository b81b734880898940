"""Small models, and the same case on every rung. Runs inside ranks: no test library is imported.

Unless a test says otherwise, rank r feeds x = 2r + 1 to a weight of 1. So the local gradients are
1, 3, 5, ... and their average over n ranks is n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter

from minddp.ddp import FlatDDP, LegacyDDP, NaiveDDP, OverlappedDDP
from minddp.launcher import launch
from minddp.recording import Recording

EACH_ALONE = {"bucket_cap_mb": 0, "first_bucket_mb": 0}
RUNGS: dict[str, Callable[..., Any]] = {
    "naive": NaiveDDP,
    "flat": FlatDDP,
    "legacy": LegacyDDP,
    "legacy, small buffer": partial(LegacyDDP, buffer_size=1),
    "overlapped": OverlappedDDP,
    "overlapped, each alone": partial(OverlappedDDP, **EACH_ALONE),
    "overlapped, views": partial(OverlappedDDP, gradient_as_bucket_view=True, **EACH_ALONE),
}


def on_every_rung(case: Callable[[Callable[..., Any]], Any], world_size: int = 2) -> dict[str, Any]:
    """For every class of the ladder what ``case(wrap)`` returned on each rank; in one launch."""
    results = launch(_all_rungs, case, world_size=world_size)
    return {rung: [result[rung] for result in results] for rung in RUNGS}


def _all_rungs(case: Callable[[Callable[..., Any]], Any]) -> dict[str, Any]:
    return {rung: case(wrap) for rung, wrap in RUNGS.items()}


def x_of_rank(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full((1, 1), 2.0 * dist.get_rank() + 1, dtype=dtype)


def linear(dtype: torch.dtype = torch.float32) -> nn.Linear:
    """One weight: y = x."""
    layer = nn.Linear(1, 1, bias=False, dtype=dtype)
    nn.init.ones_(layer.weight)
    return layer


class Layers(nn.Module):
    """Weights of 1 by name; `forward(x, "ac")` is a(x) + c(x)."""

    def __init__(self, names: str = "ab") -> None:
        super().__init__()
        for name in names:
            self.add_module(name, linear())

    def forward(self, x: Tensor, which: str) -> Tensor:
        return sum(getattr(self, name)(x) for name in which)


class Weights(nn.Module):
    """Vectors of ones of given sizes. `forward` goes through them in a given order (by default that
    of registration), so that backward finishes their gradients in the opposite order."""

    def __init__(self, sizes: Sequence[int], dtypes: Sequence[torch.dtype] = ()) -> None:
        super().__init__()
        dtypes = dtypes or [torch.float32] * len(sizes)
        pairs = zip(sizes, dtypes, strict=True)
        self.weights = nn.ParameterList(torch.ones(size, dtype=dtype) for size, dtype in pairs)

    def forward(self, x: Tensor, order: Sequence[int] | None = None) -> Tensor:
        for index in range(len(self.weights)) if order is None else order:
            x = x * self.weights[index].mean()
        return x


class Hit(Exception):
    """Raised by `Wall`."""


class Wall(torch.autograd.Function):
    """Passes forward; backward raises while `Wall.up`."""

    up = True

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if Wall.up:
            raise Hit("backward ran into the wall")
        return grad


def grads(model: nn.Module) -> dict[str, float | list[float] | None]:
    """Gradients by the name in the wrapped model; one element as a number."""
    inner = getattr(model, "module", model)
    return {name: number(param.grad) for name, param in inner.named_parameters()}


def number(tensor: Tensor | Parameter | None) -> Any:
    if tensor is None:
        return None
    dense = tensor.detach().to_dense().double()
    return round(dense.item(), 5) if dense.numel() == 1 else dense.tolist()


def error_of(call: Callable[..., Any], *args: Any, **options: Any) -> str:
    """Type and text of what a call raises; "no error" if it does not."""
    try:
        call(*args, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def calls(recording: Recording) -> list[tuple[str, int]]:
    """Operation and number of elements of each collective."""
    return [(event.op, event.numel) for event in recording.events]
