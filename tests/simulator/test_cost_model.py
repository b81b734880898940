"""The price of an all-reduce: the closed forms against a count of messages, and bad input."""

import math

import pytest

from minddp.cost_model import ALGORITHMS, CallCost, HierarchicalLink, Link, all_reduce_cost

WIRE = Link(latency_s=1e-3, bandwidth_Bps=1e6)
MESSAGE_S = 1e-3 + 0.6  # one message of 600 kB
HOSTS = HierarchicalLink(Link(1e-5, 1e9), WIRE, ranks_per_host=4)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 12])
def test_ring_is_2_n_minus_1_messages_of_an_nth(n: int) -> None:
    expected = 2 * (n - 1) * (1e-3 + 0.6 / n)
    assert all_reduce_cost(WIRE, n, "ring").seconds(6e5) == pytest.approx(expected)


@pytest.mark.parametrize(("n", "levels"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)])
def test_tree_and_star_pass_whole_tensors(n: int, levels: int) -> None:
    tree, star = (all_reduce_cost(WIRE, n, name).seconds(6e5) for name in ("tree", "star"))
    assert tree == pytest.approx(2 * levels * MESSAGE_S)
    assert star == pytest.approx(2 * (n - 1) * MESSAGE_S)


def test_ring_wins_on_bytes_and_tree_on_latency() -> None:
    ring, tree = (all_reduce_cost(WIRE, 64, name) for name in ("ring", "tree"))
    assert ring.seconds(1e9) < tree.seconds(1e9)
    assert tree.seconds(1e2) < ring.seconds(1e2)


def test_hierarchical_is_a_ring_inside_and_a_ring_between() -> None:
    inside = all_reduce_cost(HOSTS.inside, 4, "ring")
    between = all_reduce_cost(HOSTS.between, 3, "ring")
    assert all_reduce_cost(HOSTS, 12, "hierarchical") == inside + between
    assert all_reduce_cost(HOSTS, 9, "hierarchical") == inside + between  # the last host half full
    assert all_reduce_cost(HOSTS, 3, "hierarchical") == all_reduce_cost(HOSTS.inside, 3)


def test_slow_edges_set_the_pace_of_a_ring_over_hosts() -> None:
    assert all_reduce_cost(HOSTS, 4, "ring") == all_reduce_cost(HOSTS.inside, 4, "ring")
    assert all_reduce_cost(HOSTS, 8, "ring") == all_reduce_cost(WIRE, 8, "ring")
    cost = all_reduce_cost(HOSTS, 64, "hierarchical").seconds(6e5)
    assert cost < all_reduce_cost(HOSTS, 64, "ring").seconds(6e5)


def test_tree_over_hosts_pays_the_slow_link_once_a_level_above_the_host() -> None:
    # 16 ranks on 4 hosts: distances 1 and 2 stay inside, 4 and 8 do not
    cost = all_reduce_cost(HOSTS, 16, "tree")
    assert cost.start_s == pytest.approx(4 * 1e-5 + 4 * 1e-3)
    assert cost.s_per_byte == pytest.approx(4 / 1e9 + 4 / 1e6)
    # hosts of 3: rank 2's partner is rank 3, on the next host
    threes = HierarchicalLink(HOSTS.inside, WIRE, ranks_per_host=3)
    assert all_reduce_cost(threes, 4, "tree") == all_reduce_cost(WIRE, 4, "tree")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_alone_it_costs_nothing(algorithm: str) -> None:
    assert all_reduce_cost(HOSTS, 1, algorithm) == CallCost(0.0, 0.0)


@pytest.mark.parametrize("nan_or_less", [-1.0, math.nan])
def test_bad_links_and_sizes(nan_or_less: float) -> None:
    with pytest.raises(ValueError, match="latency_s must be >= 0"):
        Link(nan_or_less, 1.0)
    with pytest.raises(ValueError, match="bandwidth_Bps must be > 0"):
        Link(1.0, nan_or_less)
    with pytest.raises(ValueError, match="nbytes must be >= 0"):
        CallCost(1.0, 1.0).seconds(nan_or_less)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="bandwidth_Bps must be > 0 bytes/s, got 0"):
        Link(1.0, 0)
    with pytest.raises(ValueError, match="ranks_per_host must be a whole number >= 1, got 0"):
        HierarchicalLink(WIRE, WIRE, 0)
    for world_size in (0, -1, 2.0, True):
        with pytest.raises(ValueError, match="world_size must be a whole number >= 1"):
            all_reduce_cost(WIRE, world_size)
    with pytest.raises(ValueError, match="algorithm must be one of .*'ring'.* got 'butterfly'"):
        all_reduce_cost(WIRE, 2, "butterfly")
    with pytest.raises(ValueError, match="link must be a HierarchicalLink"):
        all_reduce_cost(WIRE, 2, "hierarchical")
