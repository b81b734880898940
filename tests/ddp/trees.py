"""Random models as plain data: a tree of layers, and the module that is built from it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from .layers import LAYERS, Linear, Tied

KINDS = (*LAYERS, "tied", "shared")


@dataclass(frozen=True)
class Layer:
    """A leaf of the tree: one of `KINDS`."""

    kind: str


@dataclass(frozen=True)
class Chain:
    """All parts, one after the other."""

    parts: tuple[Layer | Chain | Choice, ...]


@dataclass(frozen=True)
class Choice:
    """One of the parts, or none of them: the `route` that forward is given says which. Parts that
    are not taken are parameters without a gradient, on the ranks that took another route."""

    parts: tuple[Layer | Chain | Choice, ...]


Tree = Layer | Chain | Choice


class Net(nn.Module):
    """The module of a tree; `forward(x, route)` gives one number per sample."""

    def __init__(self, tree: Tree) -> None:
        super().__init__()
        self.number_of_choices = 0
        self.first: Linear | None = None  # what "tied" and "shared" layers take theirs from
        self.body = self._build(tree)

    def _build(self, tree: Tree) -> nn.Module:
        if isinstance(tree, Layer):
            return self._layer(tree.kind)
        if isinstance(tree, Chain):
            return ChainOf([self._build(part) for part in tree.parts])
        number, self.number_of_choices = self.number_of_choices, self.number_of_choices + 1
        return ChoiceOf(number, [self._build(part) for part in tree.parts])

    def _layer(self, kind: str) -> nn.Module:
        if kind in ("tied", "shared"):
            if self.first is None:
                kind = "linear"
            else:
                return self.first if kind == "shared" else Tied(self.first)
        layer = LAYERS[kind]()
        if kind == "linear" and self.first is None:
            self.first = layer
        return layer

    def forward(self, x: Tensor, route: int) -> Tensor:
        return self.body(x, route).sum(1)


class ChainOf(nn.Module):
    def __init__(self, parts: list[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor, route: int) -> Tensor:
        for part in self.parts:
            x = part(x, route)
        return x


class ChoiceOf(nn.Module):
    def __init__(self, number: int, parts: list[nn.Module]) -> None:
        super().__init__()
        self.number = number
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor, route: int) -> Tensor:
        place = (route + self.number) % (len(self.parts) + 1)
        return self.parts[place](x, route) if place < len(self.parts) else x
