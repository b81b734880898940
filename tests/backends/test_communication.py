"""gloo or NCCL, from what the ranks say of themselves; no GPU is needed to decide."""

import pytest

from minddp.backends import TorchBackend
from minddp.backends.communication import Card, choose_communication


def cards(*gpus, wanted=None, nodes=None):
    nodes = nodes or ["a"] * len(gpus)
    return [Card(node, len(gpus), n, wanted) for node, n in zip(nodes, gpus, strict=True)]


def test_nccl_where_each_rank_has_a_gpu_else_gloo():
    assert choose_communication(cards(0, 0)) == "gloo"
    assert choose_communication(cards(1, 1)) == "gloo"
    assert choose_communication(cards(2, 2)) == "nccl"
    assert choose_communication(cards(8)) == "nccl"
    assert choose_communication(cards(2, 2, wanted="gloo")) == "gloo"


def test_one_host_without_enough_gpus_makes_it_gloo_for_all():
    nodes = ["a", "a", "b", "b"]
    assert choose_communication(cards(2, 2, 2, 2, nodes=nodes)) == "nccl"
    assert choose_communication(cards(2, 2, 1, 1, nodes=nodes)) == "gloo"


def test_nccl_asked_for_without_the_gpus():
    with pytest.raises(ValueError, match="2 ranks on a, 0 CUDA devices found.*use gloo"):
        choose_communication(cards(0, 0, wanted="nccl"))
    with pytest.raises(ValueError, match="4 ranks on a, 1 CUDA devices found.*fewer ranks"):
        choose_communication(cards(1, 1, 1, 1, wanted="nccl"))


def test_ranks_that_contradict_each_other():
    with pytest.raises(ValueError, match="rank 0 gloo, rank 1 no preference"):
        choose_communication([*cards(0, wanted="gloo"), *cards(0)])
    with pytest.raises(ValueError, match="different world sizes: rank 0 2, rank 1 3"):
        choose_communication([Card("a", 2, 0, None), Card("a", 3, 0, None)])


@pytest.mark.parametrize("name", ["mps", "mpi", "GLOO2"])
def test_unknown_communication(name):
    with pytest.raises(ValueError, match=f"unknown communication '{name}'; choose from gloo, nccl"):
        TorchBackend(name)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_timeouts_that_are_none(timeout):
    with pytest.raises(ValueError, match="positive number of seconds"):
        TorchBackend(timeout=timeout)
