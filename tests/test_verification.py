"""The two checks must see what they are for: replicas that differ, gradients that are wrong."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from minddp.ddp import OverlappedDDP
from minddp.launcher import launch
from minddp.training import weighted_loss
from minddp.verification import check_against_single_process, verify_replicas


def test_equal_replicas_pass():
    def equal():
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1).bfloat16())
        model.register_buffer("mask", torch.tensor([True, False]))
        model.register_buffer("nothing", torch.empty(0))
        model[0].weight.data[0, 0] = float("nan")  # equal bit for bit
        verify_replicas(model)
        verify_replicas(OverlappedDDP(model))
        verify_replicas(nn.ReLU())

    launch(equal)


def test_replicas_that_differ_are_told_with_the_first_tensor_and_the_ranks():
    def said(model, group=None):
        try:
            verify_replicas(model, group)
        except RuntimeError as error:
            return str(error)
        return "equal"

    def differ():
        rank = dist.get_rank()
        group = dist.new_group([0, 2])
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        if rank == 1:
            model[0].bias.data[1] = torch.nextafter(model[0].bias.data[1], torch.tensor(9.0))
            model[1].running_mean += 1
        found = [said(model)]
        if rank != 1:
            found.append(said(model, group))
        found.append(said(nn.ModuleDict({"b" if rank == 2 else "a": nn.Linear(1, 1)})))
        found.append(said(nn.Linear(1 + (rank == 0), 1)))
        return found

    for rank, found in enumerate(launch(differ, world_size=3)):
        assert found[0].startswith("replicas differ in 2 of 7 tensors, first in 0.bias (")
        assert "(rank 0, 2 against rank 1)" in found[0]
        if rank != 1:
            assert found.pop(1) == "equal"
        assert found[1] == "rank 2 and rank 0 have models with different names"
        assert "first in weight (rank 0 against rank 1, 2)" in found[2]


# ---------------------------------------------------------------------- gradients


@pytest.fixture
def make():
    """Makes a wrapped model, and a batch for each rank; the same on all ranks."""

    def make(sizes=(4, 4)):
        model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
        return OverlappedDDP(model), [(torch.randn(n, 3), torch.randn(n, 2)) for n in sizes]

    return make


def test_right_gradients_are_the_single_process_mean(make):
    def right():
        ddp, batches = make()
        found = [check_against_single_process(ddp, batches) for _ in range(3)]
        kept = [param.grad is not None for param in ddp.parameters()]
        return [(c.equal, c.factor, str(c), c.max_error < 1e-6) for c in found], all(kept)

    text = "your gradients are the single-process mean"
    assert launch(right) == [([(True, 1.0, text, True)] * 3, True)] * 2


def test_wrong_gradients_by_their_factor(make):
    def wrong():
        ddp, batches = make()
        mse = nn.functional.mse_loss

        def divides_again(model, batch):
            (mse(model(batch[0]), batch[1]) / 2).backward()

        def sums(model, batch):
            mse(model(batch[0]), batch[1]).backward()
            for param in model.parameters():
                param.grad.mul_(2)

        def forgets(model, batch):
            model(batch[0])

        def stays_local(model, batch):
            with model.no_sync():
                mse(model(batch[0]), batch[1]).backward()

        def forgets_a_layer(model, batch):
            mse(model(batch[0]), batch[1]).backward()
            model.module[2].bias.grad = None

        steps = (divides_again, sums, forgets, stays_local, forgets_a_layer)
        found = [check_against_single_process(ddp, batches, step=step) for step in steps]
        return [(c.factor and round(c.factor, 3), c.worst, c.message) for c in found]

    for halved, doubled, none, local, layer in launch(wrong):
        assert halved[0] == 0.5
        assert halved[2] == "your gradients are 0.5x the single-process mean"
        assert doubled[0] == 2.0
        assert doubled[2] == "your gradients are 2x the single-process mean"
        assert none[0] == 0.0
        assert local[0] is None
        assert "not a multiple of the single-process mean: they differ most in" in local[2]
        assert layer[:2] == (None, "2.bias")


def test_unequal_batches_need_a_weighted_loss(make):
    def unequal():
        ddp, batches = make(sizes=(1, 5))

        def weighted(model, batch):
            errors = (model(batch[0]) - batch[1]) ** 2
            weighted_loss(errors.mean(1).sum(), len(errors)).backward()

        plain = check_against_single_process(ddp, batches)
        return plain.equal, check_against_single_process(ddp, batches, step=weighted).equal

    assert launch(unequal) == [(False, True)] * 2


def test_a_loss_of_ones_own_and_parameters_without_a_gradient(make):
    def own():
        ddp, batches = make()
        ddp.module[0].weight.requires_grad_(False)
        ddp.module.register_parameter("unused", nn.Parameter(torch.ones(2)))
        ddp = OverlappedDDP(ddp.module)
        loss = nn.functional.smooth_l1_loss
        return check_against_single_process(ddp, batches, loss, tolerance=1e-5).equal

    assert launch(own) == [True, True]


def test_a_bare_model_and_no_process_group(make):
    torch.manual_seed(0)
    model, batch = nn.Linear(3, 2), (torch.randn(4, 3), torch.randn(4, 2))
    assert check_against_single_process(model, [batch]).equal
    with pytest.raises(ValueError, match="need one batch per rank, 1, not 2"):
        check_against_single_process(model, [batch, batch])

    def bare():
        wrapped, batches = make()
        return check_against_single_process(wrapped.module, batches[::-1]).equal

    assert launch(bare) == [True, True]  # the hooks of its wrapper average all the same
