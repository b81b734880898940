"""torch.compile with its real code generator, and what its wrappers do to checkpoints.

The cases D50 of `test_records.py` do the same on every class, with the backends that stop before
code is generated.
"""

from __future__ import annotations

import shutil

import pytest
import torch
import torch.distributed as dist
from torch import nn

import minddp

from .models import linear, x_of

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None,
    reason="inductor needs a C++ compiler",
)


@needs_compiler
def test_gradients_are_averaged_under_inductor() -> None:
    def train():
        inner = linear()
        model = torch.compile(minddp.OverlappedDDP(inner))
        found = []
        for times in (1, 2, 3):
            inner.zero_grad()
            model(x_of(dist.get_rank(), times)).sum().backward()
            found.append(inner.weight.grad.item())
        return found

    assert minddp.launch(train, timeout=240) == [[2, 4, 6], [2, 4, 6]]


def test_checkpoint_keys_carry_no_prefix() -> None:
    """Around a wrapper, torch.compile brings a prefix of its own: `unwrap` sees through it."""

    def keys():
        inside = minddp.DistributedModel(torch.compile(nn.Sequential(linear())))
        around = torch.compile(minddp.DistributedModel(nn.Sequential(linear())))
        return list(inside.state_dict()), list(minddp.unwrap(around).state_dict())

    assert minddp.launch(keys) == [(["0.weight"], ["0.weight"])] * 2
