"""One training step of data parallel training, simulated.

All ranks do the same work at the same time, so one of them is simulated, whatever the world
size; only the price of a call grows with it (:mod:`minddp.cost_model`). A rank has a compute
lane and one communication queue. The queue is served in bucket order, one all-reduce at a time,
as the reducer of DDP does (Li et al. 2020, section 3.2.3 and algorithm 1).

What the model leaves out: copies into and out of the buckets, ranks that are late, and compute
that slows down because communication uses the same cores.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace

from minddp.buckets import plan_buckets
from minddp.cost_model import (
    HierarchicalLink,
    Link,
    all_reduce_cost,
    require,
    require_count,
)
from minddp.step_profile import StepProfile
from minddp.timeline import Span, Timeline

STRATEGIES = ("naive", "flat", "legacy", "overlapped")
MIB = 2**20
Interval = tuple[float, float]


def simulate(
    profile: StepProfile,
    link: Link | HierarchicalLink,
    world_size: int,
    strategy: str = "overlapped",
    bucket_cap_mb: float = 25.0,
    algorithm: str = "ring",
    sync_every: int = 1,
    compression: float = 1.0,
    first_bucket_mb: float = 1.0,
    ranks_shown: int = 1,
) -> Timeline:
    """Simulate one optimizer step: ``sync_every`` micro-batches, synchronised in the last.

    Args:
        profile: sizes and compute times of one micro-batch.
        link: what connects the ranks.
        strategy: ``"naive"`` (a call per parameter), ``"flat"`` (one call), ``"legacy"``
            (buckets), all three after backward, or ``"overlapped"`` (buckets during backward).
        bucket_cap_mb: capacity of a bucket in MiB; 0 is a bucket per parameter. Not used by
            ``"naive"`` and ``"flat"``.
        algorithm: ``"ring"``, ``"tree"``, ``"star"`` or ``"hierarchical"``.
        compression: factor by which gradients shrink on the wire; 2 for fp32 sent as fp16.
        first_bucket_mb: capacity of the first bucket of ``"overlapped"``, if that is less.
        ranks_shown: how many of the ranks, all alike, the timeline holds.

    Returns:
        A Timeline that starts at 0; its ``duration`` is the time of the optimizer step.

    Raises:
        ValueError: naming the argument that cannot be.
    """
    require(strategy in STRATEGIES, "strategy", f"one of {STRATEGIES}", strategy)
    require(0 <= bucket_cap_mb < math.inf, "bucket_cap_mb", ">= 0 MiB", bucket_cap_mb)
    require(first_bucket_mb >= 0, "first_bucket_mb", ">= 0 MiB", first_bucket_mb)
    require(1 <= compression < math.inf, "compression", ">= 1 (2 halves the bytes)", compression)
    require_count("sync_every", sync_every)
    require_count("ranks_shown", ranks_shown)
    cost = all_reduce_cost(link, world_size, algorithm)

    spans: list[Span] = []
    for _ in range(sync_every):
        spans += _forward_and_backward(profile, start=spans[-1].end if spans else 0.0)
    backward = spans[-1]
    release_s = [backward.end] * len(profile.ready_s)
    if strategy == "overlapped":
        release_s = [backward.start + ready for ready in profile.ready_s]
    buckets = bucket_plan(profile.param_bytes, strategy, bucket_cap_mb, first_bucket_mb)
    sizes = [sum(profile.param_bytes[i] for i in bucket) / compression for bucket in buckets]
    spans += _all_reduces(run_queue(release_s, buckets, [cost.seconds(s) for s in sizes]), sizes)
    synced = max(backward.end, spans[-1].end)
    spans.append(Span(0, "compute", synced, synced + profile.optimizer_s, "optimizer"))

    title = f"{profile.name}, {strategy}, {world_size} ranks (simulated)"
    return Timeline(_for_ranks(spans, min(ranks_shown, world_size)), title)


def bucket_plan(
    param_bytes: Sequence[float],
    strategy: str,
    bucket_cap_mb: float,
    first_bucket_mb: float = 1.0,
) -> list[list[int]]:
    """Which parameters share an all-reduce, in the order in which the calls are made."""
    everything = list(range(len(param_bytes)))
    if strategy == "naive":
        return [[index] for index in everything]
    if strategy == "flat":
        return [everything]
    cap = bucket_cap_mb * MIB
    if strategy == "legacy":
        return _legacy_plan(param_bytes, cap)
    plan = plan_buckets(param_bytes[::-1], [min(first_bucket_mb * MIB, cap), cap], "threshold")
    return [[everything[-1 - index] for index in bucket] for bucket in plan]


def _legacy_plan(param_bytes: Sequence[float], cap: float) -> list[list[int]]:
    """A parameter larger than the buffer is sent at once, before those that wait in the buffer."""
    plan: list[list[int]] = []
    held: list[int] = []
    room = cap
    for index, size in enumerate(param_bytes):
        if size > cap:
            plan.append([index])
            continue
        if size > room:
            plan.append(held)
            held, room = [], cap
        held.append(index)
        room -= size
    return [*plan, held] if held else plan


def run_queue(
    release_s: Sequence[float], buckets: Sequence[Sequence[int]], call_s: Sequence[float]
) -> list[Interval]:
    """The discrete-event loop: one wire, buckets in index order, one at a time.

    Args:
        release_s: when each gradient may travel.
        buckets: indices of the gradients of each bucket.
        call_s: how long the all-reduce of each bucket takes.

    Returns:
        Start and end of each bucket's all-reduce.
    """
    bucket_of = {index: b for b, bucket in enumerate(buckets) for index in bucket}
    missing = [len(bucket) for bucket in buckets]
    calls: list[Interval] = []
    wire_is_busy = False
    events = [(time, "gradient is ready", index) for index, time in enumerate(release_s)]
    heapq.heapify(events)
    while events:
        now, what, index = heapq.heappop(events)
        if what == "gradient is ready":
            missing[bucket_of[index]] -= 1
        else:
            wire_is_busy = False
        following = len(calls)  # never the one after it, even if that is full already
        if not wire_is_busy and following < len(buckets) and missing[following] == 0:
            calls.append((now, now + call_s[following]))
            heapq.heappush(events, (now + call_s[following], "wire is free", following))
            wire_is_busy = True
    return calls


def _forward_and_backward(profile: StepProfile, start: float) -> list[Span]:
    middle = start + profile.forward_s
    end = middle + profile.backward_seconds
    return [
        Span(0, "compute", start, middle, "forward"),
        Span(0, "compute", middle, end, "backward"),
    ]


def _all_reduces(calls: Sequence[Interval], sizes: Sequence[float]) -> list[Span]:
    labels = [f"#{b} {size / MIB:.3g} MiB" for b, size in enumerate(sizes)]
    return [
        Span(0, "comm", start, end, "all_reduce", label)
        for (start, end), label in zip(calls, labels, strict=True)
    ]


def _for_ranks(spans: list[Span], ranks: int) -> list[Span]:
    return [replace(span, rank=rank) for rank in range(ranks) for span in spans]
