"""From what the ranks left behind, say who is where and who waits for whom."""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Iterable

import torch

from minddp._launch.crew import Rank
from minddp._launch.trace import DEFAULT_GROUP, CollectiveCall

TORCH_FOLDER = os.path.dirname(torch.__file__)

Frame = tuple[str, int, str, str]  # file, line number, function, text of the line


def calls(rank: Rank) -> list[CollectiveCall]:
    """The newest collectives of a rank that has written a trace, in their order."""
    recorded = rank.read_json("trace").get("collectives") or []
    return [CollectiveCall(**call) for call in recorded]


def recorder_is_off(rank: Rank) -> bool:
    return rank.read_json("trace").get("collectives") is None


def frames(rank: Rank) -> list[Frame]:
    """The rank's stack from its function on, outermost first."""
    trace = rank.read_json("trace")
    if trace:
        return [(file, line, name, text or "") for file, line, name, text in trace["stack"]]
    return crash_frames(rank.crash_stack())


def crash_frames(dump: str) -> list[Frame]:
    """The main thread's frames in what faulthandler wrote, outermost first."""
    threads = [part for part in dump.split("\n\n") if "(most recent call first)" in part]
    if not threads:
        return []
    found = re.findall(r'^  File "(.*)", line (\d+) in (.*)$', threads[-1], re.MULTILINE)
    stack = [
        (file, int(line), name, linecache.getline(file, int(line)).strip())
        for file, line, name in reversed(found)
    ]
    ours = [i for i, frame in enumerate(stack) if frame[0].startswith(os.path.dirname(__file__))]
    return stack[ours[-1] + 1 :] if ours else stack


def format_frames(stack: Iterable[Frame]) -> str:
    lines = []
    for file, line, name, text in stack:
        lines.append(f'  File "{file}", line {line}, in {name}\n')
        if text:
            lines.append(f"    {text}\n")
    return name_cells("".join(lines))


def users_frames(stack: list[Frame]) -> list[Frame]:
    """The frames down to where torch takes over."""
    return [frame for frame in stack if not frame[0].startswith((TORCH_FOLDER, "<frozen"))]


def name_cells(text: str) -> str:
    """Name notebook cells as IPython does: the name of their file changes from run to run."""
    if "IPython" not in sys.modules:
        return text
    shell = sys.modules["IPython"].get_ipython()
    name_code = getattr(getattr(shell, "compile", None), "format_code_name", lambda name: None)

    def replace(match: re.Match[str]) -> str:
        label = name_code(match[1])
        return " ".join(label) if label else match[0]

    return re.sub(r'File "([^"\n]+)"(?=, line \d)', replace, text)


def pending(rank: Rank) -> CollectiveCall | None:
    """The collective in which a rank waits: the first that has begun and is not done."""
    return next((call for call in calls(rank) if not call.done), None)


def last(rank: Rank) -> CollectiveCall | None:
    return next(reversed(calls(rank)), None)


def whereabouts(rank: Rank) -> str:
    """Continue the sentence "rank 0 ..."."""
    if rank.returned is not None:
        return f"returned from its function{after(rank, ' after', ' without any collective')}"
    if rank.failed is not None:
        return f"failed: {rank.read_json('failure')['summary']}"
    if rank.died is not None:
        return "died"
    if rank.started is None:
        return "has not started its function yet"
    call, stack = pending(rank), frames(rank)
    if call is not None:
        return f"waits in {call}"
    users = users_frames(stack)
    inside = [frame[2] for frame in stack if frame[0].endswith("distributed_c10d.py")]
    if inside:  # what the flight recorder does not see: send and recv, or torch before 2.9
        return f"waits in {inside[0]}{after(rank)}"
    place = f"is in {users[-1][2]}, line {users[-1][1]}" if users else "runs"
    return f"{place}{after(rank)}"


def after(rank: Rank, some: str = ", after", none: str = ", before any collective") -> str:
    """The last collective before the place that was named just before."""
    if recorder_is_off(rank):
        return ""
    return f"{some} {last(rank)}" if last(rank) else none


def disagreement(ranks: list[Rank]) -> str:
    """A sentence if two ranks wait in collectives that do not fit together."""
    by_place: dict[tuple[str, int], dict[int, CollectiveCall]] = {}
    for rank in ranks:
        call = pending(rank)
        if call is not None:
            by_place.setdefault((call.group, call.position), {})[rank.number] = call
    for waiting in by_place.values():
        kinds = {(call.op, call.dtype, compared_size(call)) for call in waiting.values()}
        if len(kinds) > 1:
            each = "; ".join(f"rank {number} calls {call}" for number, call in waiting.items())
            return f"The ranks disagree about their next collective: {each}."
    return ""


def compared_size(call: CollectiveCall) -> int:
    """Sizes must be equal in these; a scatter or a gather may have its data on one rank."""
    return call.numel if call.op in ("all_reduce", "broadcast", "reduce") else 0


def left_behind(ranks: list[Rank]) -> dict[int, CollectiveCall]:
    """The collectives that wait for a rank that has returned and so will never take part."""
    gone = [rank for rank in ranks if rank.returned is not None]
    stuck = {}
    for rank in ranks:
        call = pending(rank) if rank.running else None
        if call is not None and any(never_joins(peer, call) for peer in gone):
            stuck[rank.number] = call
    return stuck


def never_joins(peer: Rank, call: CollectiveCall) -> bool:
    positions = [c.position for c in calls(peer) if c.group == call.group]
    if not positions and call.group != DEFAULT_GROUP:
        return False  # it may not be a member
    return max(positions, default=-1) < call.position
