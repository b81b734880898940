"""Debug mode: compare every collective between the ranks before it runs.

Collectives that do not match are the worst mistakes: two ranks that reduce a and b in another order
get wrong numbers in silence, unequal sizes end one rank and not the other, unequal dtypes abort the
process. Inside `checked_collectives` they end in an error, on all ranks, before anything is sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from minddp._recorder.c10d_calls import Call, signature
from minddp.agreement import require_same

_tags: list[str] = []


@contextlib.contextmanager
def tag(name: str) -> Iterator[None]:
    """Name the collectives of a block: two ranks in differently named blocks do not match, even
    where operation, size and dtype do."""
    _tags.append(name)
    try:
        yield
    finally:
        _tags.pop()


class checked_collectives(TorchDispatchMode):
    """``with checked_collectives():`` compare (operation, sizes, dtypes, tag) of each collective
    between the ranks of its group, torch's own reducer's and yours alike, before it runs.

    Slow: each collective costs another one. Messages between two ranks (send, recv) are not
    compared. ``MINDDP_DEBUG=1`` puts a launched function inside this block.

    Raises:
        RuntimeError: inside the block, on every rank, with both sides' versions.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._number = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        known = signature(func)
        if known is not None and known.op not in ("send", "recv") and known.group is not None:
            # The mode is off inside __torch_dispatch__: the comparison is not compared.
            self._compare(known.read(args), args[known.group])
        return func(*args, **(kwargs or {}))

    def _compare(self, call: Call, group: Any) -> None:
        self._number += 1
        what = f"collective {self._number}: {call.op}"
        if call.op not in ("scatter", "gather"):  # there only the root has all the tensors
            kinds = [
                f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in call.tensors
            ]
            what += f" of {', '.join(kinds)}" if kinds else ""
        if call.peer is not None:
            what += f", root {call.peer}"
        if _tags:
            what += f", in {_tags[-1]!r}"
        advice = "Every rank must call the same collectives, in the same order, with equal sizes."
        require_same("next collective", [what], advice, _group(group))


def _group(value: Any) -> dist.ProcessGroup:
    return value if isinstance(value, dist.ProcessGroup) else dist.ProcessGroup.unbox(value)
