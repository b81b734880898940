"""A timeline: which rank did what, from when to when.

Plain data, with no torch in it. A recording of a real run gives one, and so does the simulator:
what can be drawn or computed for one can be done for the other. Times are in seconds.

Every rank has two lanes. `compute` is the rank's own thread at work on forward, backward or the
optimizer; `comm` is a collective on its way. What matters for the speed of data parallel training
is how they lie over one another: communication beside computation costs (almost) nothing,
communication while the compute lane is empty is *exposed* and is paid for in full (Li et al.
2020, "PyTorch Distributed", section 3.2.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minddp.recording import Recording

LANES = ("compute", "comm")
Interval = tuple[float, float]


@dataclass(frozen=True)
class Span:
    """One bar of a timeline: `rank` was busy in `lane` from `start` to `end` (seconds).

    `kind` says with what: "forward", "backward", "optimizer" or "other" in the compute lane, the
    name of the collective ("all_reduce", "broadcast", "send", ...) in the comm lane. `label` is
    free text for the picture.
    """

    rank: int
    lane: str
    start: float
    end: float
    kind: str
    label: str = ""

    def __post_init__(self) -> None:
        if self.lane not in LANES:
            raise ValueError(f"lane is {self.lane!r}; expected one of {LANES}")
        if self.end < self.start:
            raise ValueError(
                f"span {self.kind!r} of rank {self.rank} ends at {self.end} s, before it starts "
                f"at {self.start} s; pass (start, end) in this order"
            )

    @property
    def duration(self) -> float:
        return self.end - self.start


@dataclass
class Timeline:
    """Spans of one or more ranks on one common clock, with the questions one asks of them."""

    spans: list[Span] = field(default_factory=list)
    title: str = ""

    @classmethod
    def from_recordings(cls, recordings: Iterable[Recording], title: str = "") -> Timeline:
        """The timeline of several ranks' recordings, shifted so that it starts at zero.

        The clocks of ranks on one host agree; those of two hosts do not.
        """
        spans = [span for recording in recordings for span in recording.timeline().spans]
        return cls(spans, title).shifted()

    @classmethod
    def merged(cls, timelines: Iterable[Timeline], title: str = "") -> Timeline:
        """All spans of several timelines on the clock that they share."""
        return cls([span for timeline in timelines for span in timeline.spans], title)

    def __len__(self) -> int:
        return len(self.spans)

    def __iter__(self) -> Iterator[Span]:
        return iter(self.spans)

    @property
    def ranks(self) -> list[int]:
        return sorted({span.rank for span in self.spans})

    @property
    def world_size(self) -> int:
        """Number of ranks: one more than the highest rank that has a span."""
        return max((span.rank for span in self.spans), default=-1) + 1

    @property
    def start(self) -> float:
        return min((span.start for span in self.spans), default=0.0)

    @property
    def end(self) -> float:
        return max((span.end for span in self.spans), default=0.0)

    @property
    def duration(self) -> float:
        """Seconds from the first start to the last end."""
        return self.end - self.start

    def shifted(self, start: float = 0.0) -> Timeline:
        """The same timeline, moved so that its first span starts at `start` seconds."""
        by = start - self.start
        moved = [replace(s, start=s.start + by, end=s.end + by) for s in self.spans]
        return Timeline(moved, self.title)

    def between(self, start: float, end: float) -> Timeline:
        """The part from `start` to `end` seconds; spans that reach over an edge are cut there."""
        if end < start:
            raise ValueError(f"window from {start} s to {end} s is empty; expected start <= end")
        kept = [s for s in self.spans if s.end >= start and s.start <= end]
        cut = [replace(s, start=max(s.start, start), end=min(s.end, end)) for s in kept]
        return Timeline(cut, self.title)

    def of(self, rank: int, lane: str | None = None) -> list[Span]:
        """The spans of one rank (in one lane, or in both), by start time."""
        if lane is not None and lane not in LANES:
            raise ValueError(f"lane is {lane!r}; expected one of {LANES}")
        mine = [s for s in self.spans if s.rank == rank and lane in (None, s.lane)]
        return sorted(mine, key=lambda span: (span.start, span.end))

    def busy(self, rank: int, lane: str) -> list[Interval]:
        """When the lane was in use, as intervals that are sorted and do not touch."""
        return _union((span.start, span.end) for span in self.of(rank, lane))

    def exposed(self, rank: int) -> list[Interval]:
        """When `rank` communicated while its compute lane was idle, as sorted intervals."""
        return _minus(self.busy(rank, "comm"), self.busy(rank, "compute"))

    def overlap_fraction(self, rank: int) -> float:
        """The share (0 to 1) of `rank`'s communication time that computation hid.

        1.0 when nothing was exposed, which is also the answer for a rank that never communicated.
        """
        communication = _total(self.busy(rank, "comm"))
        if communication == 0.0:
            return 1.0
        return 1.0 - _total(self.exposed(rank)) / communication


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """Join intervals that overlap or touch; empty ones vanish."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        elif end > start:
            joined.append((start, end))
    return joined


def _minus(intervals: Sequence[Interval], holes: Sequence[Interval]) -> list[Interval]:
    """What is left of `intervals` outside `holes`; both as `_union` returns them."""
    left: list[Interval] = []
    for start, end in intervals:
        for hole_start, hole_end in holes:
            if hole_end <= start or hole_start >= end:
                continue
            if hole_start > start:
                left.append((start, hole_start))
            start = hole_end
        if start < end:
            left.append((start, end))
    return left


def _total(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in intervals)
