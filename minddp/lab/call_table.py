"""Who called what, in order: the collectives of all ranks side by side, as text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from minddp.recording import POINT_TO_POINT, Collective, Recording

_DIFFERS = "<- differs"


def call_log(recordings: Sequence[Recording]) -> str:
    """One row a call, one column a rank, and a mark where ranks called different things.

    The k-th calls of all ranks belong together if everyone takes part in every collective, so the
    first mark is where a deadlock or a wrong sum began. Calls within smaller groups, and send and
    recv, are left out of the comparison: there ranks may rightly differ.
    """
    columns = [[_text(event) for event in recording.events] for recording in recordings]
    head = ["#", *(f"rank {recording.rank}" for recording in recordings)]
    rows = [head]
    for index, texts in enumerate(zip_longest(*columns, fillvalue="-")):
        calls = [recording.events[index : index + 1] for recording in recordings]
        rows.append([str(index), *texts, _DIFFERS if _differ(calls, recordings) else ""])
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    lines = ("  ".join(text.ljust(w) for text, w in zip(row, widths, strict=False)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _text(event: Collective) -> str:
    name = event.op if event.peer is None else f"{event.op} ({event.peer})"
    return f"{name} {event.size}".rstrip()


def _differ(calls: Sequence[Sequence[Collective]], recordings: Sequence[Recording]) -> bool:
    made = [call[0] for call in calls if call]
    if any(event.op in POINT_TO_POINT for event in made):
        return False
    if any(len(event.group) < recordings[0].world_size for event in made):
        return False
    return len(made) < len(calls) or len({(e.op, e.numel, e.dtype, e.peer) for e in made}) > 1
