"""Follow the ranks until all have returned, one has failed, or time is up."""

from __future__ import annotations

import time
from typing import Literal

from minddp._launch.crew import Crew, Rank
from minddp._launch.diagnosis import left_behind

Ending = Literal["returned", "failed", "late", "deadlock"]

START_LIMIT = 120.0  # seconds for processes to start, load torch and find each other
GRACE = 0.5  # seconds: a failure is reported by its peers too, and the cause may come second
ECHO_GRACE = 2.0
LOOK_FOR_DEADLOCK_EVERY = 1.0


def watch(crew: Crew, timeout: float) -> Ending:
    """Return how the launch ended; all ranks are still there, if they have not died."""
    suspicion = Suspicion()
    born = time.monotonic()
    while True:
        crew.pump()
        if any(rank.failed or rank.died for rank in crew):
            wait_for_cause(crew)
            crew.ask_traces([rank for rank in crew if rank.died is None])
            return "failed"
        if all(rank.returned for rank in crew):
            return "returned"
        if time.monotonic() > deadline(crew, born, timeout):
            crew.ask_traces(list(crew))
            return "returned" if all(rank.returned for rank in crew) else "late"
        if suspicion.confirmed(crew):
            return "deadlock"


def deadline(crew: Crew, born: float, timeout: float) -> float:
    """The time-out runs from the moment at which the last rank has entered its function."""
    starts = [rank.started for rank in crew if rank.started is not None]
    if len(starts) < len(crew.ranks):
        return born + max(timeout, START_LIMIT)
    return max(starts) + timeout


def wait_for_cause(crew: Crew) -> None:
    """Give the other ranks a moment: the first report may be the echo of another's failure."""
    seen = time.monotonic()
    while any(rank.running for rank in crew):
        grace = ECHO_GRACE if is_echo(first_failure(crew)) else GRACE
        if time.monotonic() > seen + grace:
            return
        crew.pump()


def first_failure(crew: Crew) -> Rank:
    """The earliest failure, where one that is not an echo of another goes first.

    A death is no echo, so a killed rank outranks peers that lost their connection to it. Of
    ranks that raised the same, it is the lowest: their times would differ from run to run.
    """
    failures = [rank for rank in crew if rank.failed or rank.died]
    first = min(failures, key=lambda rank: (is_echo(rank), rank.failed or rank.died))
    return next(rank for rank in failures if raised(rank) == raised(first))


def raised(rank: Rank) -> object:
    """One line about its exception; for a rank that died, itself."""
    return rank.read_json("failure")["summary"] if rank.failed else rank


def is_echo(rank: Rank) -> bool:
    return rank.failed is not None and bool(rank.read_json("failure")["echo"])


class Suspicion:
    """A rank waits for one that has returned. Twice seen, a second apart, it is certain."""

    def __init__(self) -> None:
        self.stuck: dict[int, object] = {}
        self.next_look = 0.0

    def confirmed(self, crew: Crew) -> bool:
        if not any(rank.returned for rank in crew) or time.monotonic() < self.next_look:
            return False
        if self.next_look:
            crew.ask_traces(list(crew))
            stuck: dict[int, object] = dict(left_behind(list(crew)))
            if stuck and stuck == self.stuck:
                return True
            self.stuck = stuck
        self.next_look = time.monotonic() + LOOK_FOR_DEADLOCK_EVERY
        return False
