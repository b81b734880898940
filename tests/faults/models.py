"""The small models of the cases, and how their numbers are read."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def linear(weight: float = 1.0, dtype: torch.dtype = torch.float32) -> nn.Linear:
    """One weight: y = weight * x."""
    layer = nn.Linear(1, 1, bias=False, dtype=dtype)
    nn.init.constant_(layer.weight, weight)
    return layer


class TwoLayers(nn.Module):
    """Layers a and b; `forward(x, which)` is a(x), b(x) or a(x) + b(x)."""

    def __init__(self) -> None:
        super().__init__()
        self.a = linear()
        self.b = linear()

    def forward(self, x: Tensor, which: str) -> Tensor:
        return sum(getattr(self, name)(x) for name in which)


class Weight(nn.Module):
    """One parameter `w` of any shape; `forward(x)` is (w * x), and the loss is its sum."""

    def __init__(self, w: Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(w)

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x


def x_of(rank: int, times: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """What rank r feeds: 2r + 1 (times a factor), as a batch of one."""
    return torch.full((1, 1), times * (2 * rank + 1), dtype=dtype)


def number(tensor: Tensor | None) -> object:
    """A tensor as plain numbers (one element as a float), None as None."""
    if tensor is None:
        return None
    dense = tensor.detach().to_dense().double()
    return dense.item() if dense.numel() == 1 else dense.tolist()


def gradients(model: nn.Module) -> dict[str, object]:
    """The gradient of every parameter by the name it has in the wrapped model."""
    inner = getattr(model, "module", model)
    return {name: number(parameter.grad) for name, parameter in inner.named_parameters()}


def add_gradient(model: nn.Module, rank: int, times: float = 1.0) -> object:
    """One forward and backward; the gradient as it stands then."""
    model(x_of(rank, times)).sum().backward()
    return number(model.module.weight.grad)
