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


def accumulates_gradients(parameters: Collection[Parameter], edges: Edges) -> bool:
    """Asked from inside an output's hook: will this run of autograd change gradients of ours, or
    is it a backward that has none of our parameters in its graph?

    Args:
        parameters: the wrapped parameters.
        edges: where the graph goes on below the output.

    Returns:
        True in ``backward()``; False in ``torch.autograd.grad`` and ``backward(inputs=others)``.
    """
    for param in parameters:
        node = torch.autograd.graph.get_gradient_edge(param).node
        try:
            if torch._C._will_engine_execute_node(node):
                return True
        except RuntimeError:  # torch refuses to answer inside autograd.grad(..., parameters)
            return False
    return not _reaches(parameters, edges)


def _reaches(parameters: Collection[Parameter], edges: Edges) -> bool:
    """Is one of the parameters in the graph below? (Walked only if autograd executes none.)"""
    seen = set()
    waiting = [node for node, _ in edges if node is not None]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if getattr(node, "variable", None) in parameters:
            return True
        waiting += [child for child, _ in node.next_functions if child is not None]
    return False
