"""Losses of unequal batches, norms of gradients, seeds."""

from __future__ import annotations

import random

import numpy
import pytest
import torch
import torch.distributed as dist
from torch import nn

from minddp.ddp import NaiveDDP
from minddp.launcher import launch
from minddp.recorder import record
from minddp.training import global_grad_norm, seed_everything, weighted_loss


def test_a_weighted_loss_gives_the_mean_over_all_samples():
    """One sample 1 on rank 0, three samples 3 on rank 1: the mean is 2.5, the mean of means 2."""

    def weighted():
        layer = nn.Linear(1, 1, bias=False)
        nn.init.ones_(layer.weight)
        ddp = NaiveDDP(layer)
        rank = dist.get_rank()
        x = torch.full((1 + 2 * rank, 1), 1.0 + 2 * rank)
        found = []
        for count in (len(x), torch.tensor(len(x)), torch.tensor([float(len(x))])[0]):
            ddp.zero_grad()
            with record() as recording:
                loss = weighted_loss(ddp(x).sum(), count)
            loss.backward()
            found.append((loss.item(), loss.shape, layer.weight.grad.item(), recording.count))
        return found

    first, second = launch(weighted)
    assert first == [(1 * 2 / 4, (), 2.5, 1)] * 3
    assert second == [(9 * 2 / 4, (), 2.5, 1)] * 3


def test_a_rank_without_a_sample():
    def without():
        layer = nn.Linear(1, 1, bias=False)
        nn.init.ones_(layer.weight)
        ddp = NaiveDDP(layer)
        x = torch.ones(2 * dist.get_rank(), 1) * 5
        weighted_loss(ddp(x).sum(), len(x)).backward()
        return layer.weight.grad.item()

    assert launch(without) == [5.0, 5.0]


def test_a_weighted_loss_in_a_sub_group_and_without_any():
    def some():
        group = dist.new_group([1, 2])
        if dist.get_rank() == 0:
            return None
        return weighted_loss(torch.tensor(6.0), dist.get_rank(), group).item()

    assert launch(some, world_size=3) == [None, 6 * 2 / 3, 6 * 2 / 3]
    assert weighted_loss(torch.tensor(6.0), 3).item() == 2.0


def test_counts_that_cannot_be():
    def impossible():
        found = []
        for count in (0, 1 - 2 * dist.get_rank()):
            try:
                weighted_loss(torch.tensor(1.0), count)
            except ValueError as error:
                found.append(str(error))
        return found

    said = "need counts of 0 or more, and one sample on some rank; got "
    assert launch(impossible) == [[said + "[0.0, 0.0]", said + "[1.0, -1.0]"]] * 2
    with pytest.raises(ValueError, match="one sample on some rank"):
        weighted_loss(torch.tensor(1.0), 0)


# ---------------------------------------------------------------------- norms


def parameter(*gradient: float, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    made = nn.Parameter(torch.zeros(len(gradient), dtype=dtype))
    made.grad = torch.tensor(gradient, dtype=dtype)
    return made


def test_the_norm_is_that_of_all_gradients_as_one_vector():
    without = nn.Parameter(torch.zeros(2))
    some = [parameter(3.0, 0.0), without, parameter(0.0, -4.0, dtype=torch.float64)]
    assert global_grad_norm(some).item() == 5.0
    assert global_grad_norm(iter(some), float("inf")).item() == 4.0
    assert global_grad_norm(some, 1.0).item() == 7.0
    assert global_grad_norm(some).shape == ()
    assert global_grad_norm([without]).item() == global_grad_norm([]).item() == 0.0


def test_the_norm_of_a_sparse_gradient_counts_a_row_that_came_twice_as_one():
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1, 1, 3])).sum().backward()
    assert global_grad_norm(table.parameters()).item() == pytest.approx((2 * 4 + 2) ** 0.5)


def test_the_norm_communicates_nothing_and_is_the_global_one():
    """Local gradients (2, 0) and (0, 1): the mean (1, 0.5) has the norm 1.118."""

    def norm():
        model = nn.Linear(2, 1, bias=False)
        ddp = NaiveDDP(model)
        ddp(torch.eye(2)[dist.get_rank()] * (2 - dist.get_rank())).sum().backward()
        with record() as recording:
            found = global_grad_norm(ddp.parameters()).item()
        clipped = torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0).item()
        return round(found, 5), round(clipped, 5), recording.count

    assert launch(norm) == [(1.11803, 1.11803, 0)] * 2


# ---------------------------------------------------------------------- seeds


def numbers() -> list[float]:
    return [random.random(), numpy.random.rand(), torch.rand(1).item()]


def test_a_seed_without_a_rank_is_the_same_everywhere_and_with_one_it_differs():
    def drawn():
        used = [seed_everything(7)]
        same = numbers()
        used.append(seed_everything(7, dist.get_rank()))
        return used, same, numbers()

    first, second = launch(drawn)
    assert first[0] == [7, 7]
    assert second[0] == [7, 8]
    assert first[1] == second[1] == first[2]
    assert all(a != b for a, b in zip(first[2], second[2], strict=True))
    state = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    seed_everything(7)
    assert numbers() == first[1]
    random.setstate(state[0])
    numpy.random.set_state(state[1])
    torch.set_rng_state(state[2])


@pytest.mark.parametrize("seed", [-1, 1.0, "7", True, None])
def test_seeds_that_are_none(seed):
    with pytest.raises(ValueError, match="seed must be an integer of 0 or more, not"):
        seed_everything(seed)
