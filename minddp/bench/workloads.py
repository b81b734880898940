"""The models that the ladder is measured on: large and small tensors, few and many."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def mlp(width: int, layers: int = 3) -> nn.Module:
    """Linear layers of `width` with ReLU between them."""
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*parts)


def transformer(width: int = 256, layers: int = 6) -> nn.Module:
    """An encoder of 4.7 M parameters."""
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


# name -> (build the model, build a batch for it)
WORKLOADS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "MLP, 2 M": (lambda: mlp(836), lambda: torch.randn(64, 836)),
    "MLP, 14 M": (lambda: mlp(2174), lambda: torch.randn(32, 2174)),
    "transformer, 4.7 M": (transformer, lambda: torch.randn(4, 32, 256)),
    "200 small layers": (lambda: mlp(32, layers=200), lambda: torch.randn(16, 32)),
}
