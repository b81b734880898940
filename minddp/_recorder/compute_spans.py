"""From the times of single operators to the bars of the compute lane.

Between two operators the thread was busy in Python, or it was blocked in a `wait()` that may have
been called from C++, where nobody sees it. But a wait ends when its collective does. So a
collective that ended between two operators splits the bar; a coincidence splits it for
microseconds only.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from minddp.timeline import Interval, Span

Op = tuple[float, float, str]  # start, end, kind


def compute_spans(rank: int, ops: Sequence[Op], collectives: Sequence[Interval]) -> list[Span]:
    """Join operators of one kind into spans, except across a wait for one of `collectives`."""
    by_end = sorted(collectives, key=lambda interval: interval[1])
    ends = [end for _, end in by_end]
    bars: list[Op] = []
    for start, end, kind in sorted(ops):
        if not bars or bars[-1][2] != kind:
            bars.append((start, end, kind))
            continue
        first, last, _ = bars[-1]
        ended = by_end[bisect_right(ends, last) : bisect_left(ends, start)]
        if ended:
            waited_from = max(last, min(launch for launch, _ in ended))
            bars[-1] = (first, waited_from, kind)
            bars.append((ended[-1][1], end, kind))
        else:
            bars[-1] = (first, max(last, end), kind)
    return [Span(rank, "compute", start, end, kind) for start, end, kind in bars]
