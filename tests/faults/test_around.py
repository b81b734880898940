"""Records about what surrounds a DDP class: the same answer whichever class is used.

D40 (the factory's side), D41, D48, D49, D52.
"""

from __future__ import annotations

import os
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DistributedSampler

import minddp
from minddp import collectives

from .models import linear, x_of


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize(
    "module", [nn.ReLU(), linear().requires_grad_(False)], ids=["ReLU", "frozen"]
)
def test_d40_factory_passes_a_module_without_training_through(module, world_size):
    def wrap_and_run():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = minddp.DistributedModel(module)
        out = model(x_of(dist.get_rank())).item()
        return out, [str(w.message) for w in caught]

    for rank, (out, said) in enumerate(minddp.launch(wrap_and_run, world_size=world_size)):
        assert out == 2 * rank + 1
        assert len(said) == 1 and type(module).__name__ in said[0]


def test_d41_collective_on_a_tensor_with_a_graph_is_not_silent():
    names = ["all_reduce", "star_all_reduce", "tree_all_reduce", "ring_all_reduce"]

    def reduce_in_the_loss():
        complaints = {}
        for name in names:
            w = torch.ones(1, requires_grad=True)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    getattr(collectives, name)(w * (2 * dist.get_rank() + 1))
                except RuntimeError as error:
                    complaints[name] = str(error)
            complaints.setdefault(name, " ".join(str(w.message) for w in caught))
        return complaints

    for said in minddp.launch(reduce_in_the_loss):
        assert {name: "differentiable" in text for name, text in said.items()} == dict.fromkeys(
            names, True
        )


@pytest.mark.parametrize("world_size", [2, 3])
def test_d48_same_weights_different_dropout_disjoint_samples(world_size):
    def seeded():
        rank = dist.get_rank()
        minddp.seed_everything(0)
        weight = nn.Linear(4, 4).weight.detach().clone()
        sampler = DistributedSampler(range(6), seed=0)
        minddp.seed_everything(0, rank)
        mask = nn.functional.dropout(torch.ones(64)) > 0
        return weight.tolist(), list(sampler), mask.tolist()

    weights, samples, masks = zip(*minddp.launch(seeded, world_size=world_size), strict=True)
    assert all(weight == weights[0] for weight in weights)
    assert sorted(sum(samples, [])) == list(range(6))
    assert len({tuple(mask) for mask in masks}) == world_size


def test_d49_counts_are_summed_and_no_sample_counts_twice():
    """Five items, of which the model gets only the first right."""

    def evaluate():
        rank, ranks = dist.get_rank(), dist.get_world_size()
        padded = list(DistributedSampler(range(5), shuffle=False))
        right = {}
        for name, items in (("padded", padded), ("own", list(range(rank, 5, ranks)))):
            counts = torch.tensor([items.count(0), len(items)])
            dist.all_reduce(counts)
            right[name] = (counts[0] / counts[1]).item()
        return padded, right

    (first, right), (second, _) = minddp.launch(evaluate)
    assert (first, second) == ([0, 2, 4], [1, 3, 0])
    assert right["padded"] == pytest.approx(2 / 6)
    assert right["own"] == pytest.approx(0.20)


def test_d52_a_model_that_cannot_travel_is_named():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # its successor has no such attribute
        model = nn.utils.weight_norm(nn.Linear(1, 1))
    model(torch.ones(1, 1))
    with pytest.raises(Exception, match=r"\.weight\b.*inside the function"):
        minddp.launch(lambda given: given(torch.ones(1, 1)).item(), model)
    assert "RANK" not in os.environ
