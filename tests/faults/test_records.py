"""Every case on every class of the ladder, with 2 and 3 ranks, on real processes.

One launch runs all cases for one class; each case is then a test of its own, so that a failure
names the record, the class, the number of ranks and the rank that was wrong.
"""

from __future__ import annotations

from functools import cache

import pytest

from .batch import jobs_of, launch_of, run_batch
from .record import Case, Outcome
from .rungs import RUNGS, Rung

RANKS = (2, 3)
TESTS = jobs_of(RUNGS)


@cache
def outcomes_of(name: str, world_size: int) -> dict[tuple[str, str], list[Outcome]]:
    jobs = [job for job in TESTS if launch_of(*job) == name]
    found = run_batch(jobs, world_size)
    return {
        (rung.label, case.name): outcomes
        for (rung, case), outcomes in zip(jobs, found, strict=True)
    }


@pytest.mark.parametrize("world_size", RANKS, ids="{} ranks".format)
@pytest.mark.parametrize(
    ("rung", "case"), TESTS, ids=[f"{rung.label}-{case.name}" for rung, case in TESTS]
)
def test_record(rung: Rung, case: Case, world_size: int) -> None:
    outcomes = outcomes_of(launch_of(rung, case), world_size)[rung.label, case.name]
    fault = case.judge(world_size, outcomes)
    if fault:
        pytest.fail(
            f"{case.record}: {case.title}\n{rung.label}, {world_size} ranks\n{fault}\n"
            f"(a wrong answer would be: {case.wrong})",
            pytrace=False,
        )
