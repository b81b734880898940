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
    spans: list[Span] = []
    for start, end, kind in sorted(ops):
        last = spans[-1] if spans else None
        if last is None or last.kind != kind:
            spans.append(Span(rank, "compute", start, end, kind))
            continue
        ended = by_end[bisect_right(ends, last.end) : bisect_left(ends, start)]
        if ended:
            waited_from = max(last.end, min(launch for launch, _ in ended))
            spans[-1] = Span(rank, "compute", last.start, waited_from, kind)
            spans.append(Span(rank, "compute", ended[-1][1], end, kind))
        else:
            spans[-1] = Span(rank, "compute", last.start, max(last.end, end), kind)
    return spans
