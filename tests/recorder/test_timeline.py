"""Timelines: pure arithmetic on spans."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minddp._recorder.compute_spans import compute_spans
from minddp.recording import Collective, Recording, format_bytes
from minddp.timeline import Span, Timeline


def compute(start: float, end: float, rank: int = 0, kind: str = "backward") -> Span:
    return Span(rank, "compute", start, end, kind)


def comm(start: float, end: float, rank: int = 0) -> Span:
    return Span(rank, "comm", start, end, "all_reduce")


def event(seq: int, start: float, end: float | None) -> Collective:
    return Collective("all_reduce", 256, None, 1024, seq, 0, start, end, "backward")


def test_exposed_is_communication_without_computation() -> None:
    timeline = Timeline(
        [compute(0, 2), compute(3, 5), compute(0, 9, rank=1), comm(1, 4), comm(3.5, 7), comm(8, 9)]
    )
    assert timeline.exposed(0) == [(2, 3), (5, 7), (8, 9)]
    assert timeline.overlap_fraction(0) == pytest.approx(3 / 7)
    assert timeline.busy(0, "comm") == [(1, 7), (8, 9)]


def test_edges_of_overlap() -> None:
    assert Timeline([comm(1, 2)]).overlap_fraction(0) == 0.0
    assert Timeline([compute(0, 3), comm(1, 2)]).overlap_fraction(0) == 1.0
    assert Timeline([compute(0, 3)]).overlap_fraction(0) == 1.0
    assert Timeline().overlap_fraction(0) == 1.0
    assert Timeline([comm(1, 1)]).exposed(0) == []


def test_extent_shift_and_window() -> None:
    timeline = Timeline([compute(5, 7), comm(6, 10, rank=2)], "title")
    assert (timeline.world_size, timeline.ranks, timeline.duration) == (3, [0, 2], 5)
    moved = timeline.shifted()
    assert [(s.start, s.end) for s in moved] == [(0, 2), (1, 5)]
    assert moved.title == "title"
    cut = moved.between(1, 3)
    assert [(s.start, s.end) for s in cut] == [(1, 2), (1, 3)]
    assert (Timeline().world_size, Timeline().duration, len(Timeline().shifted())) == (0, 0.0, 0)
    both = Timeline.merged([timeline, moved])
    assert len(both) == 4 and both.of(0, "compute") == [compute(0, 2), compute(5, 7)]


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="ends at 1 s, before it starts at 2 s"):
        compute(2, 1)
    with pytest.raises(ValueError, match="lane is 'gpu'; expected one of"):
        Span(0, "gpu", 0, 1, "forward")
    with pytest.raises(ValueError, match="lane is 'gpu'"):
        Timeline().of(0, "gpu")
    with pytest.raises(ValueError, match="expected start <= end"):
        Timeline().between(2, 1)
    with pytest.raises(ValueError, match="phase is 'back'; expected one of forward, backward"):
        Recording().collectives(phase="back")


spans = st.lists(
    st.tuples(st.sampled_from(["compute", "comm"]), st.integers(0, 20), st.integers(0, 8)).map(
        lambda x: Span(0, x[0], float(x[1]), float(x[1] + x[2]), "backward")
    ),
    max_size=12,
)


@given(spans)
def test_exposed_agrees_with_counting(spans: list[Span]) -> None:
    """Integer times: every unit of time is exposed or not as its middle is."""

    def inside(moment: float, lane: str) -> bool:
        return any(s.lane == lane and s.start <= moment < s.end for s in spans)

    units = [unit + 0.5 for unit in range(30)]
    by_hand = [unit for unit in units if inside(unit, "comm") and not inside(unit, "compute")]
    exposed = Timeline(spans).exposed(0)
    assert [u for u in units if any(a <= u < b for a, b in exposed)] == by_hand
    assert sum(b - a for a, b in exposed) == len(by_hand)
    assert all(a[1] < b[0] for a, b in zip(exposed, exposed[1:], strict=False))


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)), max_size=8))
def test_queued_collectives_cover_the_same_time(calls: list) -> None:
    events = [event(i, float(start), float(start + took)) for i, (start, took) in enumerate(calls)]
    drawn = Recording(events=events).timeline()
    whole = Timeline([comm(e.start, e.end or 0.0) for e in events])
    assert drawn.busy(0, "comm") == whole.busy(0, "comm")


def test_a_queued_collective_starts_when_the_one_before_ends() -> None:
    recording = Recording(events=[event(0, 0, 4), event(1, 1, 6), event(2, 2, 5), event(3, 9, 10)])
    bars = [(bar.start, bar.end) for bar in recording.timeline()]
    assert bars == [(0, 4), (4, 6), (2, 5), (9, 10)]


def test_collectives_without_an_end_are_not_drawn() -> None:
    recording = Recording(events=[event(0, 1, None), event(1, 2, 3)])
    assert [span.label for span in recording.timeline()] == ["#1 1.0 KiB"]


def test_recordings_share_a_clock() -> None:
    recordings = [Recording(rank, 2, [], [compute(100 + rank, 102, rank)]) for rank in range(2)]
    timeline = Timeline.from_recordings(recordings, "two ranks")
    assert [(s.rank, s.start, s.end) for s in timeline] == [(0, 0, 2), (1, 1, 2)]


def test_operators_join_unless_the_thread_waited() -> None:
    ops = [(0, 1, "backward"), (1.1, 2, "backward"), (5, 6, "backward"), (6, 7, "optimizer")]
    waited = compute_spans(0, ops, [(2.5, 4.5)])  # launched 0.5 after the operator before it
    assert [(s.start, s.end) for s in waited] == [(0, 2.5), (4.5, 6), (6, 7)]
    in_flight = compute_spans(0, ops, [(0.5, 4.5)])
    assert [(s.start, s.end) for s in in_flight] == [(0, 2), (4.5, 6), (6, 7)]
    still_running = compute_spans(0, ops, [(0.5, 6.5)])  # nobody waited for this one
    assert [(s.start, s.end) for s in still_running] == [(0, 6), (6, 7)]
    assert compute_spans(0, [], [(0, 1)]) == []


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (25 * 2**20, "25.0 MiB"),
        (2**40, "1024.0 GiB"),
    ],
)
def test_bytes_as_text(count: int, text: str) -> None:
    assert format_bytes(count) == text
