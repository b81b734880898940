"""Parameters of every kind: shared, empty, without dimensions, strided, sparse, of mixed types."""

from __future__ import annotations

import torch
from torch import nn

from ..models import Weight, gradients, linear, number, x_of
from ..record import case


@case(
    "D11",
    "two layers that share one weight",
    right=lambda n, rank: {"w": 2 * n, "parameters": 1},
    wrong="reduced twice, or only one of the two uses counted",
)
def shared_weight(wrap, rank, world_size):
    inner = nn.Sequential(linear(), linear())
    inner[1].weight = inner[0].weight
    model = wrap(inner)
    model(x_of(rank)).sum().backward()
    return {"w": number(inner[0].weight.grad), "parameters": len(list(model.parameters()))}


class Mixed(nn.Module):
    """One layer for each type; `forward` multiplies each by the same x."""

    def __init__(self, *dtypes: torch.dtype) -> None:
        super().__init__()
        self.layers = nn.ModuleList(linear(dtype=dtype) for dtype in dtypes)

    def forward(self, x, times):
        outs = [
            (layer(x.to(layer.weight.dtype)) * factor).double()
            for layer, factor in zip(self.layers, times, strict=True)
        ]
        return sum(outs)


@case(
    "D30",
    "float32 and float64 in one model",
    right=lambda n, rank: {"grads": [n, n], "dtypes": ["torch.float32", "torch.float64"]},
    wrong="an error, or one type for both",
)
def float32_and_float64(wrap, rank, world_size):
    model = wrap(Mixed(torch.float32, torch.float64))
    model(x_of(rank), (1, 1)).sum().backward()
    grads = [layer.weight.grad for layer in model.module.layers]
    return {"grads": [number(g) for g in grads], "dtypes": [str(g.dtype) for g in grads]}


@case(
    "D30",
    "a float16 layer first, then gradients that float16 cannot hold",
    right=lambda n, rank: {"layers.0": n, "layers.1": 70000 * n, "layers.2": 1e-8 * n},
    wrong="inf for the large one and 0 for the small one: all went through a float16 buffer",
    tolerance=1e-3,
)
def float16_first(wrap, rank, world_size):
    model = wrap(Mixed(torch.float16, torch.float32, torch.float32))
    model(x_of(rank), (1, 70000, 1e-8)).sum().backward()
    return {name.removesuffix(".weight"): grad for name, grad in gradients(model).items()}


@case(
    "D30",
    "all layers in half precision",
    right=lambda n, rank: {"layers.0": n, "layers.1": n, "layers.2": n},
    wrong="an error, or the gradients cast to one type",
    tolerance=1e-2,
)
def half_precision(wrap, rank, world_size):
    model = wrap(Mixed(torch.bfloat16, torch.float16, torch.bfloat16))
    model(x_of(rank), (1, 1, 1)).sum().backward()
    return {name.removesuffix(".weight"): grad for name, grad in gradients(model).items()}


@case(
    "D32",
    "a parameter without dimensions",
    right=lambda n, rank: {"w": n, "shape": []},
    wrong="IndexError, or a gradient of shape [1]",
)
def no_dimensions(wrap, rank, world_size):
    model = wrap(Weight(torch.tensor(1.0)))
    model(x_of(rank)).sum().backward()
    return {"w": number(model.module.w.grad), "shape": list(model.module.w.grad.shape)}


class WithEmpty(nn.Module):
    """One weight, and a parameter with no elements."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear()
        self.e = nn.Parameter(torch.empty(0))

    def forward(self, x):
        return self.layer(x).sum() + self.e.sum()


@case(
    "D33",
    "a parameter without elements",
    right=lambda n, rank: {"layer.weight": n, "e": [], "shape": [0]},
    wrong="an error, or no gradient for the empty parameter",
)
def no_elements(wrap, rank, world_size):
    model = wrap(WithEmpty())
    model(x_of(rank)).backward()
    return gradients(model) | {"shape": list(model.module.e.grad.shape)}


@case(
    "D34",
    "a transposed parameter",
    right=lambda n, rank: {"w": [[0, n, 2 * n], [3 * n, 4 * n, 5 * n]], "stride": [1, 2]},
    wrong="the elements permuted: 0, 3, 1, 4, 2, 5",
)
def transposed(wrap, rank, world_size):
    model = wrap(Weight(torch.ones(3, 2).t()))
    (model(x_of(rank)) * torch.arange(6.0).view(2, 3)).sum().backward()
    grad = model.module.w.grad
    return {"w": number(grad), "stride": list(grad.stride())}


@case(
    "D34",
    "a convolution in channels_last",
    right=lambda n, rank: {"all": True, "channels last": True},
    wrong="the elements permuted, or the layout lost",
)
def channels_last(wrap, rank, world_size):
    conv = nn.Conv2d(2, 2, 2, bias=False).to(memory_format=torch.channels_last)
    nn.init.ones_(conv.weight)
    model = wrap(conv)
    # Every weight gets a gradient of its own: 1 to 8 for the inputs, times 1 or 10 by output.
    images = torch.arange(1.0, 9.0).view(1, 2, 2, 2).contiguous(memory_format=torch.channels_last)
    (model(images * x_of(rank)) * torch.tensor([1.0, 10.0]).view(1, 2, 1, 1)).sum().backward()
    expected = world_size * torch.cat([images, 10 * images])
    grad = model.module.weight.grad
    layout = grad.is_contiguous(memory_format=torch.channels_last)
    return {"all": torch.allclose(grad, expected), "channels last": layout}


class Lookup(nn.Module):
    """A sparse table and a dense layer beside it."""

    def __init__(self, rows: int, **options) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, 1, sparse=True, **options)
        self.layer = linear()

    def forward(self, rows, x):
        return self.table(rows).sum() + self.layer(x).sum()


def looked_up(wrap, rank, rows, world_size, **options):
    """The gradients of a table with world_size + 2 rows, in two steps."""
    model = wrap(Lookup(world_size + 2, **options))
    found = []
    for _ in range(2):
        model.zero_grad()
        model(torch.tensor(rows), x_of(rank)).backward()
        table = model.module.table.weight.grad
        found.append([value for (value,) in number(table)])
        dense = number(model.module.layer.weight.grad)
    return {"first": found[0], "second": found[1], "dense": dense}


def rows_and_dense(rows):
    def answer(n, rank):
        return {"first": rows(n), "second": rows(n), "dense": n}

    return answer


@case(
    "D35",
    "sparse gradients: rank r looks up row r and, as all do, row n",
    right=rows_and_dense(lambda n: [1 / n] * n + [1, 0]),
    wrong="local rows, or an error that names nothing",
)
def sparse_gradients(wrap, rank, world_size):
    return looked_up(wrap, rank, [rank, world_size], world_size)


@case(
    "D36",
    "sparse gradients: rank 0 looks up only padding",
    right=rows_and_dense(lambda n: [0] + [1 / n] * (n - 1) + [0, 0]),
    wrong="a hang or an error: rank 0's gradient has no entry",
)
def only_padding(wrap, rank, world_size):
    return looked_up(wrap, rank, [rank], world_size, padding_idx=0)
