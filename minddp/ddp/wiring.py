"""Has the model changed since it was wrapped?

A wrapper knows the Parameter objects that it hooked. A layer that is replaced afterwards brings new
ones, whose gradients nobody would average, silently. So each training forward compares the model
with a snapshot. It has to be quick: the snapshot is a list of (dictionary, key, value) to look up.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter


class Wiring:
    """A snapshot of which parameter hangs where in a module.

    Args:
        module: the module to watch.
        ignored: names of parameters to leave out of account.
    """

    def __init__(self, module: nn.Module, ignored: Collection[str] = ()) -> None:
        self.module = module
        self.ignored = ignored
        self.parameters = {p: self._kind(p) for _, p in self._named()}
        self._take_snapshot()

    def _take_snapshot(self) -> None:
        tables: list[dict[str, Any]] = []
        for owner in self.module.modules():
            tables += [owner._parameters, owner._modules]
        self.sizes = [(table, len(table)) for table in tables]
        self.entries = [(table, key, value) for table in tables for key, value in table.items()]

    def _named(self) -> list[tuple[str, Parameter]]:
        # A plain tensor in a parameter's place is a temporary swap (torch.func.functional_call).
        named = self.module.named_parameters()
        return [(n, p) for n, p in named if isinstance(p, Parameter) and n not in self.ignored]

    @staticmethod
    def _kind(param: Tensor) -> tuple[bool, torch.dtype, torch.device]:
        return param.requires_grad, param.dtype, param.device

    def kinds_changed(self) -> bool:
        """Was a parameter frozen, unfrozen, cast or moved?"""
        return any(self._kind(param) != kind for param, kind in self.parameters.items())

    def new_parameter(self) -> str | None:
        """Name of a parameter that was not there when the model was wrapped, or None."""
        same_sizes = all(len(table) == size for table, size in self.sizes)
        if same_sizes and all(table.get(key) is value for table, key, value in self.entries):
            return None
        for name, param in self._named():
            if param not in self.parameters:
                return name
        self._take_snapshot()  # something else was replaced, such as an activation
        return None
