"""Read a dispatched operator of torch's `c10d` library: which collective, what size, which ranks.

Every collective of `torch.distributed`, and every one that DDP's reducer calls from C++, passes
the dispatcher as an operator such as `c10d::allreduce_(Tensor[] tensors, ProcessGroup, ...)`.
Names and argument positions come from the operator's schema, so that variants and later torch
versions, which append arguments, read the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

_c10d: Any = distributed_c10d
NAMESPACES = ("c10d", "_c10d_functional")

# First match wins, hence reduce_scatter before reduce.
_PREFIXES = {
    "allreduce": "all_reduce",
    "all_reduce": "all_reduce",
    "reduce_scatter": "reduce_scatter",
    "reduce": "reduce",
    "allgather": "all_gather",
    "all_gather": "all_gather",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "isend": "send",
    "recv": "recv",
    "irecv": "recv",
    "barrier": "barrier",
    "monitored_barrier": "barrier",
}
OPS = frozenset(_PREFIXES.values())
_INPUTS = ("input_tensors", "input_tensor", "input_list", "inputs", "input", "tensors", "tensor")
_OUTPUTS = ("output_tensors",)
_GROUPS = ("process_group", "group_name")
_PEERS = ("root_rank", "dst", "src")


@dataclass(frozen=True)
class Call:
    """One call, before it is made."""

    op: str
    tensors: tuple[torch.Tensor, ...]
    group: tuple[int, ...]
    peer: int | None

    @property
    def numel(self) -> int:
        return sum(tensor.numel() for tensor in self.tensors)

    @property
    def nbytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)


@dataclass(frozen=True)
class Signature:
    """Where a c10d operator keeps what we want to know: positions in its arguments."""

    op: str
    tensors: int | None
    group: int | None
    peer: int | None
    blocks: bool  # complete when the operator returns

    def read(self, args: tuple[Any, ...]) -> Call:
        tensors = () if self.tensors is None else tuple(_tensors_in(args[self.tensors]))
        group = None if self.group is None else _process_group(args[self.group])
        ranks = () if group is None else _ranks(group)
        peer = None if self.peer is None else args[self.peer]
        if peer is not None and ranks:
            peer = ranks[peer]  # c10d counts within the group
        return Call(self.op, tensors, ranks, peer)


@cache
def signature(func: Any) -> Signature | None:
    """The signature of a dispatched operator, or None if it is no collective."""
    namespace, _, name = func._schema.name.partition("::")
    if namespace not in NAMESPACES:
        return None
    name = name.lstrip("_")
    op = next((op for prefix, op in _PREFIXES.items() if name.startswith(prefix)), None)
    if op is None:
        return None
    arguments = [argument.name for argument in func._schema.arguments]
    wanted = _OUTPUTS if op == "scatter" else _INPUTS  # scatter: only the root has inputs
    return Signature(
        op,
        None if op == "barrier" else _position(wanted, arguments),
        _position(_GROUPS, arguments),
        _position(_PEERS, arguments),
        blocks=name.startswith("monitored_barrier"),
    )


def work_of(result: Any) -> Any | None:
    """The `Work` object among what a c10d operator returned, or None."""
    last = result[-1] if isinstance(result, tuple) and result else result
    return _c10d.Work.unbox(last) if isinstance(last, torch.ScriptObject) else None


def _position(names: tuple[str, ...], arguments: list[str]) -> int | None:
    return next((arguments.index(name) for name in names if name in arguments), None)


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for item in value:
            yield from _tensors_in(item)


def _process_group(value: Any) -> Any:
    if isinstance(value, torch.ScriptObject):
        return dist.ProcessGroup.unbox(value)
    if isinstance(value, str):
        return _c10d._resolve_process_group(value)
    return value


def _ranks(group: Any) -> tuple[int, ...]:
    """Global ranks of a group; one that torch.distributed does not know counts from 0."""
    try:
        return tuple(dist.get_process_group_ranks(group))
    except (KeyError, ValueError):
        return tuple(range(group.size()))
