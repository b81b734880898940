"""The layers that random models are made of: each kind of parameter that DDP may meet.

Every layer maps a batch of shape (samples, 8), float64, to the same shape, so that any can follow
any other. `forward(x, route)` is also told the route through the model, see `trees.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.utils.checkpoint import checkpoint

WIDTH = 8


class Linear(nn.Module):
    """A linear layer that computes in `dtype`."""

    dtype = torch.float64

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH, dtype=self.dtype)

    def forward(self, x: Tensor, route: int) -> Tensor:
        return self.inner(x.to(self.dtype)).double()


class Float32(Linear):
    dtype = torch.float32


class BFloat16(Linear):
    dtype = torch.bfloat16


class Checkpointed(Linear):
    def forward(self, x: Tensor, route: int) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


class Frozen(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.inner.requires_grad_(False)


class WeightFrozen(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.inner.weight.requires_grad_(False)


class Unused(Linear):
    def forward(self, x: Tensor, route: int) -> Tensor:
        return x


class Tied(nn.Module):
    """Another layer's weight, the same Parameter, transposed; a bias of its own."""

    def __init__(self, other: Linear) -> None:
        super().__init__()
        self.weight = other.inner.weight
        self.bias = Parameter(torch.randn(WIDTH, dtype=torch.float64))

    def forward(self, x: Tensor, route: int) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


class Scalar(nn.Module):
    """A parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = Parameter(torch.randn((), dtype=torch.float64))

    def forward(self, x: Tensor, route: int) -> Tensor:
        return self.scale * x


class Empty(nn.Module):
    """A parameter without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing = Parameter(torch.empty(0, 3, dtype=torch.float64))

    def forward(self, x: Tensor, route: int) -> Tensor:
        return x + self.nothing.sum()


class Transposed(nn.Module):
    """A parameter whose elements do not lie in memory in the order of its indices."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.float64).t() / 3)

    def forward(self, x: Tensor, route: int) -> Tensor:
        return x @ self.weight


class ChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        conv = nn.Conv2d(2, 2, 3, padding=1, dtype=torch.float64)
        self.conv = conv.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor, route: int) -> Tensor:
        images = x.view(-1, 2, 2, 2).contiguous(memory_format=torch.channels_last)
        return self.conv(images).reshape(-1, WIDTH)


class SparseEmbedding(nn.Module):
    """Sparse gradients; ranks on different routes touch different rows."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, WIDTH, sparse=True, dtype=torch.float64)

    def forward(self, x: Tensor, route: int) -> Tensor:
        return x + self.table((torch.arange(len(x)) + route) % 5)


class Buffered(nn.Module):
    """A buffer and no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.randn(WIDTH, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(3))

    def forward(self, x: Tensor, route: int) -> Tensor:
        return x * self.scale / self.count


LAYERS: dict[str, type[nn.Module]] = {
    "linear": Linear,
    "scalar": Scalar,
    "transposed": Transposed,
    "channels_last": ChannelsLast,
    "float32": Float32,
    "bfloat16": BFloat16,
    "sparse": SparseEmbedding,
    "empty": Empty,
    "unused": Unused,
    "frozen": Frozen,
    "weight frozen": WeightFrozen,
    "checkpointed": Checkpointed,
    "buffered": Buffered,
}
