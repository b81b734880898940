"""Do all ranks say the same? If not, let all of them raise, naming both sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist


def require_same(what: str, lines: Sequence[str], advice: str, group: dist.ProcessGroup) -> None:
    """Compare a list of lines between ranks and raise on *every* rank where they differ.

    Args:
        what: what is compared, for the message ("model").
        lines: this rank's description of it, one line an item.
        advice: the way out, for the message.
        group: the ranks that compare. A collective: each of them must call this.

    Raises:
        RuntimeError: names the first line that differs and both ranks' versions of it.
    """
    everyone: list[Any] = [None] * group.size()
    dist.all_gather_object(everyone, list(lines), group=group)
    for other in range(1, group.size()):
        if everyone[other] != everyone[0]:
            first, second = _first_difference(everyone[0], everyone[other])
            ranks = dist.get_process_group_ranks(group)
            raise RuntimeError(
                f"rank {ranks[0]} and rank {ranks[other]} have a different {what}: "
                f"rank {ranks[0]} has {first}, rank {ranks[other]} has {second}. {advice}"
            )


def _first_difference(first: list[str], second: list[str]) -> tuple[str, str]:
    for index in range(max(len(first), len(second))):
        pair = [side[index] if index < len(side) else None for side in (first, second)]
        if pair[0] != pair[1]:
            texts = [text or "nothing more" for text in pair]
            return f"[{texts[0]}]", f"[{texts[1]}]"
    return "the same", "the same"
