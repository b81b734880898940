"""The event loop against pen and paper."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minddp.closed_forms import best_bucket_bytes, exposed_seconds
from minddp.cost_model import CallCost, HierarchicalLink, Link, all_reduce_cost
from minddp.simulator import MIB, STRATEGIES, bucket_plan, run_queue, simulate
from minddp.step_profile import StepProfile
from minddp.timeline import Timeline

WIRE = Link(latency_s=1e-3, bandwidth_Bps=1e9)
# Registered a, b, c; ready in the order c, b, a.
SMALL = StepProfile(
    param_bytes=[4 * MIB, 2 * MIB, 1 * MIB],
    ready_s=[0.06, 0.03, 0.01],
    forward_s=0.05,
    optimizer_s=0.02,
    backward_s=0.07,
)


def all_reduces(timeline: Timeline) -> list[float]:
    """Start, end, start, end, ... of the calls."""
    return [time for span in timeline.of(0, "comm") for time in (span.start, span.end)]


def seconds(mib: float, world_size: int = 4) -> float:
    return all_reduce_cost(WIRE, world_size).seconds(mib * MIB)


def test_naive_calls_once_per_parameter_after_backward() -> None:
    start, expected = 0.12, []
    for mib in (4, 2, 1):
        expected += [start, start + seconds(mib)]
        start += seconds(mib)
    timeline = simulate(SMALL, WIRE, 4, "naive")
    assert all_reduces(timeline) == pytest.approx(expected)
    assert timeline.duration == pytest.approx(start + 0.02)
    assert timeline.overlap_fraction(0) == 0.0


def test_flat_calls_once_and_legacy_fills_buckets() -> None:
    assert all_reduces(simulate(SMALL, WIRE, 4, "flat")) == pytest.approx([0.12, 0.12 + seconds(7)])
    legacy = simulate(SMALL, WIRE, 4, "legacy", bucket_cap_mb=4)
    assert all_reduces(legacy) == pytest.approx(
        [0.12, 0.12 + seconds(4), 0.12 + seconds(4), 0.12 + seconds(4) + seconds(3)]
    )


def test_overlapped_launches_a_bucket_when_its_last_gradient_is_ready() -> None:
    timeline = simulate(SMALL, WIRE, 4, "overlapped", bucket_cap_mb=2, first_bucket_mb=2)
    # buckets [c, b] and [a]; backward starts at 0.05
    assert all_reduces(timeline) == pytest.approx(
        [0.08, 0.08 + seconds(3), 0.11, 0.11 + seconds(4)]
    )
    assert timeline.duration == pytest.approx(max(0.12, 0.11 + seconds(4)) + 0.02)


def test_a_slow_wire_queues_the_buckets() -> None:
    slow = Link(1e-3, 1e7)
    calls = all_reduces(simulate(SMALL, slow, 2, bucket_cap_mb=0))
    starts, ends = calls[::2], calls[1::2]
    assert len(starts) == 3
    assert starts[0] == pytest.approx(0.06)
    assert starts[1:] == ends[:-1]


def test_buckets_are_launched_in_index_order() -> None:
    # The first bucket is full last: the second waits for it, though it is ready and the wire free.
    assert run_queue([9.0, 1.0], [[0], [1]], [2.0, 2.0]) == [(9.0, 11.0), (11.0, 13.0)]


@st.composite
def queues(draw):
    buckets = draw(st.lists(st.integers(1, 4), min_size=1, max_size=8))
    times = st.floats(0, 100)
    release = draw(st.lists(times, min_size=sum(buckets), max_size=sum(buckets)))
    indices = iter(draw(st.permutations(range(sum(buckets)))))
    plan = [[next(indices) for _ in range(count)] for count in buckets]
    return release, plan, draw(st.lists(times, min_size=len(plan), max_size=len(plan)))


@given(queues())
def test_the_loop_agrees_with_the_recurrence(queue) -> None:
    release, plan, call_s = queue
    free, expected = 0.0, []
    for bucket, duration in zip(plan, call_s, strict=True):
        start = max(free, *(release[index] for index in bucket))
        free = start + duration
        expected.append((start, free))
    assert run_queue(release, plan, call_s) == expected


@given(
    buckets=st.integers(1, 40),
    backward_s=st.floats(0, 10),
    latency_s=st.floats(0, 1),
    bandwidth=st.floats(1e3, 1e12),
    n=st.integers(1, 64),
)
def test_the_loop_agrees_with_the_closed_form(buckets, backward_s, latency_s, bandwidth, n) -> None:
    link = Link(latency_s, bandwidth)
    total = buckets * MIB
    profile = StepProfile.even(total, backward_s, count=buckets)
    timeline = simulate(profile, link, n, bucket_cap_mb=1.0)
    expected = exposed_seconds(total, backward_s, buckets, all_reduce_cost(link, n))
    assert timeline.duration - backward_s == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("backward_s", [0.05, 0.1, 0.2, 0.5])
def test_the_best_bucket_size_is_the_best_of_the_loop(backward_s: float) -> None:
    """On a wire that is slower than, as fast as and faster than the backward pass."""
    total, cost = 100 * MIB, all_reduce_cost(WIRE, 2)

    def one_each(buckets: int) -> dict[str, float]:
        cap = 0.99 * total / buckets / MIB
        return {"bucket_cap_mb": cap, "first_bucket_mb": cap}

    def simulated(buckets: int) -> float:
        step = StepProfile.even(total, backward_s, count=buckets)
        return simulate(step, WIRE, 2, **one_each(buckets)).duration

    formula = total / best_bucket_bytes(total, cost, backward_s)
    next_to_it = [math.floor(formula), math.ceil(formula)]
    best = min([*range(1, 60), *range(60, 400, 10), *next_to_it], key=simulated)
    assert best == pytest.approx(formula, rel=0.1)
    assert min(map(simulated, next_to_it)) == pytest.approx(simulated(best), rel=1e-4)


def test_the_rule_of_thumb_is_a_square_root() -> None:
    two_ranks = all_reduce_cost(Link(1e-3, 1e9), 2)  # a ring of two: 2 messages of half the bytes
    assert best_bucket_bytes(1e8, two_ranks) == pytest.approx(math.sqrt(1e8 * 1e9 * 2e-3))
    assert best_bucket_bytes(1e8, CallCost(0.0, 1e-9)) == 0.0
    assert best_bucket_bytes(1e3, CallCost(1.0, 1e-9)) == 1e3  # never more than everything


def test_accumulation_synchronises_once() -> None:
    once, four = (simulate(SMALL, WIRE, 4, sync_every=k) for k in (1, 4))
    assert all_reduces(four) == pytest.approx([time + 3 * 0.12 for time in all_reduces(once)])
    assert four.duration == pytest.approx(once.duration + 3 * 0.12)
    kinds = [span.kind for span in four.of(0, "compute")]
    assert kinds == ["forward", "backward"] * 4 + ["optimizer"]


def test_compression_halves_the_bytes_and_not_the_latency() -> None:
    plain, half = (simulate(SMALL, WIRE, 4, "flat", compression=c) for c in (1.0, 2.0))
    saved = plain.duration - half.duration
    assert saved == pytest.approx((seconds(7) - seconds(0)) / 2)


def test_alone_there_is_nothing_to_pay() -> None:
    for strategy in STRATEGIES:
        alone = simulate(SMALL, WIRE, 1, strategy)
        assert alone.duration == pytest.approx(SMALL.compute_s)
        assert alone.exposed(0) == []


def test_all_ranks_are_alike_and_a_few_are_shown() -> None:
    timeline = simulate(SMALL, WIRE, 1024, ranks_shown=3)
    assert timeline.world_size == 3
    assert "1024 ranks" in timeline.title and "simulated" in timeline.title
    bars = [[(s.lane, s.start, s.end) for s in timeline.of(rank)] for rank in range(3)]
    assert bars[0] == bars[1] == bars[2]
    assert simulate(SMALL, WIRE, 2, ranks_shown=3).world_size == 2


def test_every_parameter_travels_once() -> None:
    sizes = [3.0 * MIB, 1.0 * MIB, 9.0 * MIB, 0.5 * MIB, 2.0 * MIB]
    for strategy in STRATEGIES:
        plan = bucket_plan(sizes, strategy, 4.0)
        assert sorted(index for bucket in plan for index in bucket) == list(range(5))
    assert bucket_plan(sizes, "overlapped", 0.0) == [[4], [3], [2], [1], [0]]


def test_bucket_plans_of_the_real_classes() -> None:
    sizes = [2.0 * MIB, 9.0 * MIB, 3.0 * MIB, 2.0 * MIB, 4.0 * MIB]
    assert bucket_plan(sizes, "legacy", 5.0) == [[1], [0, 2], [3], [4]]  # the 9 overtakes the 2
    assert bucket_plan(sizes, "overlapped", 5.0) == [[4], [3, 2], [1], [0]]  # the first has 1 MiB
    assert bucket_plan(sizes, "overlapped", 5.0, first_bucket_mb=5.0) == [[4, 3], [2, 1], [0]]


def test_the_number_of_spans_does_not_grow_with_ranks() -> None:
    profile = StepProfile.even(1e8, 0.1, count=160)
    few, many = (len(simulate(profile, WIRE, n, "naive")) for n in (2, 4096))
    assert few == many


def test_a_sweep_costs_the_same_at_any_scale() -> None:
    """Seconds of one sweep over those of another, in one run."""
    profile = StepProfile.even(1e8, 0.1, count=160)
    hosts = HierarchicalLink(Link(1e-6, 1e11), WIRE, 8)

    def sweep(n: int) -> float:
        begin = time.perf_counter()
        for cap in range(20):
            simulate(profile, hosts, n, bucket_cap_mb=float(cap), algorithm="hierarchical")
        return time.perf_counter() - begin

    assert min(sweep(4096) for _ in range(3)) < 5 * min(sweep(8) for _ in range(3))
