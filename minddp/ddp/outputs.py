"""The tensors in a model's output, and whether a backward from them is ours.

A backward that reaches no wrapped parameter on one rank must still take part in the averaging, or
the other ranks wait for ever. So the wrapper hooks the outputs of forward too. But the same hook
fires in `torch.autograd.grad`, which leaves gradients alone and so must not communicate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

Edges = tuple[tuple[Any, int], ...]


def tensors_in(output: Any) -> Iterator[Tensor]:
    """Every tensor inside nested lists, tuples, mappings and dataclasses. Other objects are left
    alone: nothing goes wrong if they hide a tensor, as parameters have hooks of their own."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from tensors_in(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from tensors_in(value)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        for field in dataclasses.fields(output):
            yield from tensors_in(getattr(output, field.name, None))


def accumulates_gradients(parameters: Collection[Parameter], below: Edges) -> bool:
    """Asked from inside an output's hook: is this run of autograd a backward that is ours?

    Args:
        parameters: the wrapped parameters.
        below: where the graph goes on below the output.

    Returns:
        True in ``backward()``, also if none of our parameters is in its graph; False in
        ``torch.autograd.grad`` and ``backward(inputs=others)``.
    """
    ours = (param for param in parameters if param.requires_grad)
    edges = (torch.autograd.graph.get_gradient_edge(param) for param in ours)
    if any(_will_accumulate(edge.node) for edge in edges):
        return True
    leaves = list(_leaves(below))  # a walk through the graph, only if autograd runs none of ours
    if any(leaf.variable in parameters for leaf in leaves):
        return False
    return any(_will_accumulate(leaf) for leaf in leaves)


def _will_accumulate(leaf: Any) -> bool:
    """Will the current run add to this leaf's gradient?"""
    try:
        return bool(torch._C._will_engine_execute_node(leaf))
    except RuntimeError:  # torch's answer for a leaf that autograd.grad was asked about
        return False


def _leaves(below: Edges) -> Iterator[Any]:
    seen = set()
    waiting = [node for node, _ in below if node is not None]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node
        waiting += [child for child, _ in node.next_functions if child is not None]
