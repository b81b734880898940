"""The shapes of the DDP paper's figures come out of the simulator; see PAPER for its numbers."""

from itertools import pairwise

import pytest

from minddp.paper_figures import (
    CONFIRMED,
    GLOO_LIKE,
    NCCL_LIKE,
    PAPER,
    REMEMBERED,
    best_cap_mb,
    breakdown,
    bucket_sweep,
    overlap_gain,
    scaling,
    sync_sweep,
)
from minddp.simulator import STRATEGIES, simulate
from minddp.step_profile import load_profile

RESNET, BERT = load_profile("resnet50"), load_profile("bert_base")
BOTH = pytest.mark.parametrize("profile", [RESNET, BERT], ids=lambda profile: profile.name)
LINKS = pytest.mark.parametrize("link", [NCCL_LIKE, GLOO_LIKE], ids=["nccl", "gloo"])


def test_figure_6_gain_of_overlap() -> None:
    """Within 2.5 points of the paper's four numbers, and in their order."""
    gains = {
        (profile.name, name): overlap_gain(profile, link)
        for profile in (RESNET, BERT)
        for name, link in (("nccl", NCCL_LIKE), ("gloo", GLOO_LIKE))
    }
    assert gains[RESNET.name, "nccl"] == pytest.approx(0.380, abs=0.025)
    assert gains[BERT.name, "nccl"] == pytest.approx(0.352, abs=0.025)
    assert gains[RESNET.name, "gloo"] == pytest.approx(0.268, abs=0.025)
    assert gains[BERT.name, "gloo"] == pytest.approx(0.215, abs=0.025)
    assert sorted(gains, key=gains.__getitem__, reverse=True) == [
        (RESNET.name, "nccl"),
        (BERT.name, "nccl"),
        (RESNET.name, "gloo"),
        (BERT.name, "gloo"),
    ]


@BOTH
def test_figure_6_parts_add_up(profile) -> None:
    for strategy in STRATEGIES:
        parts = breakdown(profile, NCCL_LIKE, strategy)
        assert sum(parts.values()) == pytest.approx(
            simulate(profile, NCCL_LIKE, 32, strategy).duration
        )


@BOTH
@LINKS
@pytest.mark.parametrize("world_size", [16, 32])
def test_figure_7_is_a_u(profile, link, world_size: int) -> None:
    sweep = bucket_sweep(profile, link, world_size)
    caps = list(sweep)
    best = best_cap_mb(sweep)
    falling = [sweep[cap] for cap in caps if cap <= best]
    rising = [sweep[cap] for cap in caps if cap >= best]
    assert caps[0] < best < caps[-1]
    # 1 % of freedom: where buckets end depends on the sizes of the layers
    assert all(after <= 1.01 * before for before, after in pairwise(falling))
    assert all(after >= 0.99 * before for before, after in pairwise(rising))
    assert max(sweep.values()) == sweep[0], "no bucketing at all is the worst"
    assert sweep[200] > 1.1 * sweep[best]


def test_figure_7_best_bucket_and_what_it_is_worth() -> None:
    sweep = bucket_sweep(RESNET, NCCL_LIKE, 16)
    assert 10 <= best_cap_mb(sweep) <= 25
    assert sweep[0] > 2 * min(sweep.values())


@BOTH
@LINKS
def test_figure_8_more_ranks_want_larger_buckets(profile, link) -> None:
    at_16, at_32 = (bucket_sweep(profile, link, n) for n in (16, 32))
    assert best_cap_mb(at_32) >= best_cap_mb(at_16)
    assert at_32[0] / min(at_32.values()) > at_16[0] / min(at_16.values())


@BOTH
@LINKS
def test_figure_9_order_of_the_strategies(profile, link) -> None:
    curves = {strategy: scaling(profile, link, strategy=strategy) for strategy in STRATEGIES}
    for curve in curves.values():
        times = list(curve.values())
        assert times == sorted(times)
    for n in (16, 32, 64):
        at_n = {strategy: curve[n] for strategy, curve in curves.items()}
        assert min(at_n, key=at_n.__getitem__) == "overlapped"
        assert max(at_n, key=at_n.__getitem__) == "naive"


def test_figure_9_slowdown_and_the_step_from_one_host_to_two() -> None:
    nccl, gloo = (scaling(RESNET, link) for link in (NCCL_LIKE, GLOO_LIKE))
    assert nccl[256] / nccl[1] == pytest.approx(2.0, rel=0.15)
    assert gloo[256] / gloo[1] == pytest.approx(3.0, rel=0.15)
    for curve in (nccl, gloo):
        assert curve[8] < 1.01 * curve[1]
        assert curve[16] > 1.05 * curve[8]


@BOTH
@LINKS
def test_figure_10_fewer_synchronisations_help_less_and_less(profile, link) -> None:
    times = list(sync_sweep(profile, link).values())
    savings = [before - after for before, after in pairwise(times)]
    assert all(saving > 0 for saving in savings)
    assert savings == sorted(savings, reverse=True)
    assert times[-1] > profile.forward_s + profile.backward_seconds


@BOTH
def test_figure_10_gloo_gains_more_than_nccl(profile) -> None:
    nccl, gloo = (sync_sweep(profile, link) for link in (NCCL_LIKE, GLOO_LIKE))
    saved_nccl, saved_gloo = (1 - sweep[8] / sweep[1] for sweep in (nccl, gloo))
    assert saved_gloo > saved_nccl
    assert saved_nccl == pytest.approx(0.38, abs=0.06)
    assert saved_gloo == pytest.approx(0.57, abs=0.06)


def test_every_number_of_the_paper_says_how_far_it_is_confirmed() -> None:
    assert {number.trust for number in PAPER} == {CONFIRMED, REMEMBERED}
    assert {number.figure for number in PAPER} == {"6", "7", "9", "10"}
