"""Is it the same? On N ranks as in one process, and on all ranks bit for bit."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .layers import BFloat16, Float32

EXACT = 1e-9  # relative tolerance in float64


class Difference(AssertionError):
    """What differs, and where."""


def gradients(net: nn.Module) -> dict[str, Tensor | None]:
    return {name: param.grad for name, param in net.named_parameters()}


def tolerance(net: nn.Module) -> float:
    """Rounding goes from a layer of low precision into the gradients of all before it."""
    if any(isinstance(layer, BFloat16) for layer in net.modules()):
        return 0.1
    return 1e-4 if any(isinstance(layer, Float32) for layer in net.modules()) else EXACT


def compare(where: str, found: dict[str, Any], right: dict[str, Any], tolerance: float) -> None:
    for name, expected in right.items():
        got = found[name]
        if got is None or expected is None:
            if got is not expected:
                raise Difference(f"{where}: {name} is {got}, in one process {expected}")
            continue
        if (got.layout, got.dtype, got.shape) != (expected.layout, expected.dtype, expected.shape):
            raise Difference(f"{where}: {name} is {got}, in one process {expected}")
        if got.layout == torch.strided and got.stride() != expected.stride():
            raise Difference(f"{where}: strides of {name}: {got.stride()}, {expected.stride()}")
        got, expected = got.detach().to_dense().double(), expected.detach().to_dense().double()
        floor = 1e-3 if tolerance == EXACT else 1.0
        scale = max([floor, *expected.abs().flatten().tolist()])
        if not torch.allclose(got, expected, rtol=0, atol=tolerance * scale):
            raise Difference(f"{where}: {name} is\n{got}\nin one process\n{expected}")


def require_same_on_all_ranks(where: str, tensors: dict[str, Tensor | None]) -> None:
    mine = {name: fingerprint(tensor) for name, tensor in tensors.items()}
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    for rank, theirs in enumerate(everyone):
        wrong = [name for name in mine if theirs[name] != everyone[0][name]]
        if wrong:
            raise Difference(f"{where}: {wrong[0]} differs between rank 0 and rank {rank}")


def fingerprint(tensor: Tensor | None) -> str | None:
    if tensor is None:
        return None
    bits = tensor.detach().to_dense().contiguous().view(-1).view(torch.uint8)
    return hashlib.sha256(bits.numpy().tobytes()).hexdigest()
