"""Sparse gradients, as embeddings give them: averaged one by one, never in a flat buffer."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import Parameter


def sparse_parameters(module: nn.Module) -> set[Parameter]:
    """Weights of the layers that produce sparse gradients: embeddings with ``sparse=True``."""
    layers = (nn.Embedding, nn.EmbeddingBag)
    weights = (m.weight for m in module.modules() if isinstance(m, layers) and m.sparse)
    return {weight for weight in weights if isinstance(weight, Parameter)}


def average_sparse(
    param: Parameter, group: dist.ProcessGroup, divisor: float, silent: bool = False
) -> None:
    """Replace ``param.grad`` by its average over the ranks, a coalesced sparse tensor.

    A rank without a gradient (or a `silent` one) adds an empty one. If the sum has no entry, a
    gradient that is None stays None."""
    if param.grad is None or silent:
        mine = torch.zeros_like(param, layout=torch.sparse_coo)
    else:
        mine = param.grad.detach().to_sparse()
    total = (mine / divisor).coalesce()
    dist.all_reduce(total, group=group)
    if not silent and (param.grad is not None or total._nnz() > 0):
        param.grad = total.coalesce()
