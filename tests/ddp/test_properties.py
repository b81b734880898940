"""Whatever the model and the training loop: N ranks train as one process on the whole batch.

Hypothesis makes up models and programs (`programs.py`). When one fails, the message ends with the
smallest failing program that was found, as text: ``launch(run_program, Program(...))`` runs it.

The examples are the same in every run. For more of them, and new ones each time:

    MINDDP_EXAMPLES=500 pytest tests/ddp/test_properties.py
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .crew import Crew
from .programs import Micro, Program, Step, as_text, run_program
from .trees import KINDS, Chain, Choice, Layer

EXAMPLES = int(os.environ.get("MINDDP_EXAMPLES") or 0)
MANY = settings(
    max_examples=EXAMPLES or 100,
    derandomize=not EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
MOST_RANKS = 4


def parts_of(kind: type[Chain] | type[Choice], part: st.SearchStrategy, least: int, most: int):
    return st.lists(part, min_size=least, max_size=most).map(lambda parts: kind(tuple(parts)))


layers = st.sampled_from(KINDS).map(Layer)
choices = parts_of(Choice, layers | parts_of(Chain, layers, 1, 3), 1, 2)
nested_choices = parts_of(Choice, layers | parts_of(Chain, layers | choices, 2, 3), 1, 2)
trees = parts_of(Chain, layers | choices | nested_choices, 2, 6)
routes = st.integers(0, 3)


@st.composite
def micros(draw: st.DrawFn, may_be_left_out: bool) -> Micro:
    sync = draw(st.booleans())
    route = st.none() | routes if may_be_left_out and not sync else routes
    return Micro(
        routes=tuple(draw(route) for _ in range(MOST_RANKS)),
        sync=sync,
        forwards=draw(st.integers(1, 2)),
        backwards=draw(st.integers(1, 2)),
        together=draw(st.booleans()),
    )


@st.composite
def steps(draw: st.DrawFn) -> Step:
    # All ranks run a forward first: only there is a change of frozen parameters taken in.
    first = draw(micros(may_be_left_out=False))
    rest = draw(st.lists(micros(may_be_left_out=True), max_size=2))
    return Step(
        micros=(first, *rest),
        before=draw(st.sampled_from(["", "", "freeze", "unfreeze"])),
        zero=draw(st.sampled_from(["none", "zeros", "keep"])),
    )


# In MiB: one per parameter, a handful of elements, about 100 and 1000, everything.
CAPACITIES = [25, 0, 1e-5, 1e-3, 1e-2]


@st.composite
def wrappings(draw: st.DrawFn) -> tuple[str, dict]:
    rung = draw(
        st.sampled_from(["naive", "flat", "legacy", "overlapped", "overlapped", "overlapped"])
    )
    options = {"debug": draw(st.booleans())}
    if rung == "legacy":
        options["buffer_size"] = draw(st.sampled_from([2**28, 0, 1, 8, 64, 100]))
    if rung == "overlapped":
        options["bucket_cap_mb"] = draw(st.sampled_from(CAPACITIES))
        options["first_bucket_mb"] = draw(st.sampled_from(CAPACITIES))
        options["gradient_as_bucket_view"] = draw(st.booleans())
        if draw(st.sampled_from([False, False, True])):
            options["comm_hook"] = "allreduce"
    return rung, options


@st.composite
def programs(draw: st.DrawFn) -> Program:
    rung, options = draw(wrappings())
    return Program(
        tree=draw(trees),
        steps=tuple(draw(st.lists(steps(), min_size=2, max_size=4))),
        rung=rung,
        options=options,
        optimizer=draw(st.sampled_from(["sgd", "adam"])),
        seed=draw(st.integers(0, 99)),
    )


@pytest.fixture(scope="module")
def crews() -> Iterator[dict[int, Crew]]:
    """Ranks that are running, by their number."""
    running: dict[int, Crew] = {}
    yield running
    for crew in running.values():
        crew.end()


@pytest.mark.timeout(1200 + 10 * EXAMPLES)
@MANY
@given(programs(), st.sampled_from([2, 3, 4, 2, 3, 1]))
def test_n_ranks_train_as_one_process_does_on_the_whole_batch(
    crews: dict[int, Crew], program: Program, world_size: int
) -> None:
    if world_size not in crews:
        crews[world_size] = Crew(run_program, world_size)
    error = crews[world_size].run(program)
    if error is not None:
        del crews[world_size]
        pytest.fail(f"{error}\n\n{world_size} ranks ran\n{as_text(program)}", pytrace=False)
