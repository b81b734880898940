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
        ignored: names of parameters to leave out, and of whose owners too.
    """

    def __init__(self, module: nn.Module, ignored: Collection[str] = ()) -> None:
        self.entries: list[tuple[dict[str, Any], str, Any, str]] = []
        self.sizes: list[tuple[dict[str, Any], int, str]] = []
        for prefix, owner in module.named_modules():
            for table in (owner._modules, owner._parameters):
                names = [f"{prefix}.{key}".lstrip(".") for key in table]
                if any(self._covers(name, ignored) for name in names):
                    continue
                self.sizes.append((table, len(table), prefix))
                self.entries += [
                    (table, key, table[key], n) for key, n in zip(table, names, strict=True)
                ]
        self.parameters = list(module.parameters())
        self.kinds = [self._kind(p) for p in self.parameters]

    @staticmethod
    def _covers(name: str, ignored: Collection[str]) -> bool:
        return any(other == name or other.startswith(name + ".") for other in ignored)

    @staticmethod
    def _kind(param: Parameter) -> tuple[bool, torch.dtype, torch.device]:
        return param.requires_grad, param.dtype, param.device

    def kinds_changed(self) -> bool:
        """Was a parameter frozen, unfrozen, cast or moved?"""
        return any(
            self._kind(p) != kind for p, kind in zip(self.parameters, self.kinds, strict=True)
        )

    def replaced(self) -> str | None:
        """Name of a parameter or sub-module that is not the one that was wrapped, or None.

        A plain tensor in a parameter's place is a temporary swap (torch.func.functional_call)."""
        for table, key, value, name in self.entries:
            now = table.get(key)
            if now is not value and (not isinstance(now, Tensor) or isinstance(now, Parameter)):
                return name
        for table, size, prefix in self.sizes:
            if len(table) != size:
                known = {key for other, key, _, _ in self.entries if other is table}
                new = next(key for key in table if key not in known)
                return f"{prefix}.{new}".lstrip(".")
        return None
