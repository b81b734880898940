"""Sparse gradients, as embeddings give them: averaged one by one, never in a flat buffer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter


def sparse_parameters(module: nn.Module) -> set[Parameter]:
    """Weights of the layers that produce sparse gradients: embeddings with ``sparse=True``."""
    layers = (nn.Embedding, nn.EmbeddingBag)
    weights = (m.weight for m in module.modules() if isinstance(m, layers) and m.sparse)
    return {weight for weight in weights if isinstance(weight, Parameter)}


def average_sparse(
    parameters: Sequence[Parameter], group: dist.ProcessGroup, divisor: float, silent: bool
) -> None:
    """Replace the gradient of each parameter by its average over the ranks.

    One small all-reduce tells who has what: a parameter without a gradient on any rank is left
    alone; one with a dense gradient on some rank (its weight is tied to a Linear layer, say) gets
    a dense average; the others get a sparse one. A `silent` rank adds nothing and changes nothing.
    """
    forms = [0 if silent else _form(param.grad) for param in parameters]
    agreed = torch.tensor(forms, device=parameters[0].device)
    dist.all_reduce(agreed, dist.ReduceOp.MAX, group)
    for param, form in zip(parameters, agreed.tolist(), strict=True):
        if form == 0:
            continue
        mine = _nothing(param) if param.grad is None or silent else param.grad.detach()
        if form == 2:
            mine = mine.to_dense()
        total = mine / divisor if form == 2 else (mine / divisor).coalesce()
        dist.all_reduce(total, group=group)
        if not silent:
            param.grad = total if form == 2 else total.coalesce()


def _nothing(param: Parameter) -> Tensor:
    """A sparse gradient without a row, shaped like an embedding's: sparse in rows only. (gloo sends
    rows by that shape, and aborts where ranks differ in it.)"""
    return torch.sparse_coo_tensor(
        param.new_empty((1, 0), dtype=torch.int64),
        param.new_empty((0, *param.shape[1:])),
        param.shape,
    )


def _form(grad: Tensor | None) -> int:
    """0: no gradient, 1: a sparse one, 2: a dense one."""
    return 0 if grad is None else 1 if grad.is_sparse else 2
