"""Times of collectives from `torch.profiler`, joined to the recorded events.

gloo's own threads report `gloo:all_reduce` from start to end to the profiler, so that these times
do not depend on when a Python callback gets the interpreter lock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from minddp._recorder.c10d_calls import OPS
from minddp.recording import Collective

_MARK = "minddp: what time is it"
_TOLERANCE = 50e-6  # seconds that the two clocks may disagree


class ProfiledTimes:
    """Start and end (seconds, `time.monotonic`) of each collective by name of operator."""

    def __init__(self) -> None:
        self.intervals: dict[str, list[tuple[float, float]]] = {}

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Profile the block; the intervals are there when it has ended."""
        if torch._C._autograd._profiler_enabled():
            raise RuntimeError(
                'record(times="profiler") starts torch.profiler, but a profiler is already '
                'running in this process; leave that one first, or use record(times="dispatch")'
            )
        profiler = profile(activities=[ProfilerActivity.CPU])
        with _quiet():
            profiler.start()
        clocks = _mark_clock()
        try:
            yield
        finally:
            with _quiet():
                profiler.stop()
            self._read(profiler, clocks)

    def _read(self, profiler: profile, clocks: list[float]) -> None:
        events = list(profiler.events() or [])
        marks = sorted(event.time_range.start for event in events if event.name == _MARK)
        # Each clock was read just before its mark, so every difference is too small; the largest
        # one is the nearest.
        offset = max(clock - mark * 1e-6 for clock, mark in zip(clocks, marks, strict=True))
        for event in events:
            backend, _, op = event.name.partition(":")
            if backend in ("gloo", "nccl") and op in OPS:
                start, end = event.time_range.start * 1e-6, event.time_range.end * 1e-6
                self.intervals.setdefault(op, []).append((start + offset, end + offset))

    def apply(self, events: list[Collective]) -> list[Collective]:
        """Give each call the first interval of its operator that began after its launch.

        A call without one keeps its times. Intervals that belong to no call are passed over:
        gloo uses send and recv for purposes of its own, too.
        """
        timed = list(events)
        for op, intervals in self.intervals.items():
            left = sorted(intervals)
            for index in (index for index, event in enumerate(events) if event.op == op):
                launched = events[index].start - _TOLERANCE
                while left and left[0][0] < launched:
                    left.pop(0)
                if left:
                    start, end = left.pop(0)
                    timed[index] = replace(events[index], start=start, end=end)
        return timed


def _mark_clock() -> list[float]:
    """Leave marks in the profile and return the `time.monotonic` just before each."""
    clocks = []
    for _ in range(5):
        clocks.append(time.monotonic())
        with record_function(_MARK):
            pass
    return clocks


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the profiler's library from logging its start and stop to stderr."""
    name = "KINETO_LOG_LEVEL"
    before: Any = os.environ.get(name)
    os.environ.setdefault(name, "99")
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
