"""Accumulation: what stays local, for how long, and who is told."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from minddp.ddp import LegacyDDP, NaiveDDP, OverlappedDDP
from minddp.launcher import launch
from minddp.recorder import record

from .small import Layers, calls, error_of, grads, linear, on_every_rung, x_of_rank


def test_gradients_are_local_inside_and_their_sum_is_averaged_outside():
    def accumulate(wrap):
        ddp = wrap(linear())
        found = []
        for _ in range(2):
            ddp.zero_grad()
            with ddp.no_sync(), record() as recording:
                for _ in range(2):
                    ddp(x_of_rank()).sum().backward()
            found += [calls(recording), grads(ddp)["weight"]]
            ddp(x_of_rank()).sum().backward()
            found.append(grads(ddp)["weight"])
        return found

    for rung, results in on_every_rung(accumulate).items():
        assert results == [[[], 2.0, 6.0] * 2, [[], 6.0, 6.0] * 2], rung


def test_what_was_used_only_inside_counts_as_used():
    def inside(wrap):
        ddp = wrap(Layers("abc"), error_on_unused=False)
        found = []
        for _ in range(2):
            ddp.zero_grad()
            with ddp.no_sync():
                ddp(x_of_rank(), "a").sum().backward()
            ddp(x_of_rank(), "b").sum().backward()
            found.append(grads(ddp))
        return found

    expected = {"a.weight": 2.0, "b.weight": 2.0, "c.weight": None}
    for rung, results in on_every_rung(inside).items():
        assert results == [[expected] * 2] * 2, rung


def test_nested_blocks_and_exceptions_restore_what_was_before():
    def nested(wrap):
        ddp = wrap(linear())
        states = []
        with ddp.no_sync():
            with ddp.no_sync():
                states.append(ddp.require_backward_grad_sync)
            states.append(ddp.require_backward_grad_sync)
            error_of(raise_inside, ddp)
            states.append(ddp.require_backward_grad_sync)
        states.append(ddp.require_backward_grad_sync)
        error_of(raise_inside, ddp)
        states.append(ddp.require_backward_grad_sync)
        ddp(x_of_rank()).sum().backward()
        return states, grads(ddp)["weight"]

    def raise_inside(ddp):
        with ddp.no_sync():
            raise ValueError

    for rung, results in on_every_rung(nested).items():
        assert results == [([False, False, False, True, True], 2.0)] * 2, rung


def test_it_is_backward_that_counts_and_mixed_use_warns():
    def mixed(wrap):
        ddp = wrap(linear())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with ddp.no_sync():
                loss = ddp(x_of_rank()).sum()
            loss.backward()
            outside = grads(ddp)["weight"]
            mixed_use = [str(warning.message) for warning in caught]
            caught.clear()
            ddp.zero_grad()
            loss = ddp(x_of_rank()).sum()
            with ddp.no_sync():
                loss.backward()
            inside = grads(ddp)["weight"]
            ddp(x_of_rank()).sum().backward()  # the ordinary end of an accumulation
        return outside, len(mixed_use), "".join(mixed_use)[:52], inside, caught

    told = "forward ran inside no_sync() but backward outside: t"
    for rung, results in on_every_rung(mixed).items():
        assert results == [(2.0, 1, told, 1.0, []), (2.0, 1, told, 3.0, [])], rung


def test_reduce_gradients_averages_what_is_only_local():
    def by_hand(wrap):
        ddp = wrap(Layers())
        with ddp.no_sync():
            ddp(x_of_rank(), "a").sum().backward()
        ddp.reduce_gradients()
        once = grads(ddp)
        ddp.reduce_gradients()
        return once == grads(ddp), once

    for rung, results in on_every_rung(by_hand).items():
        assert results == [(True, {"a.weight": 2.0, "b.weight": None})] * 2, rung


def test_a_guarded_optimizer_refuses_local_gradients():
    def guarded(wrap):
        ddp = wrap(nn.ModuleDict({"emb": nn.Embedding(2, 1, sparse=True), "l": linear()}))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        ddp.guard(optimizer)
        row = torch.tensor([0])
        found = [error_of(optimizer.step)]
        for loss_of in (
            lambda: ddp.module["l"](x_of_rank()).sum(),
            lambda: ddp.module["emb"](row).sum(),
        ):
            ddp.zero_grad()
            with ddp.no_sync():
                loss_of().backward()
            found.append(error_of(optimizer.step))
            optimizer.zero_grad()
            found.append(error_of(optimizer.step))  # nothing there that could be local
            with ddp.no_sync():
                loss_of().backward()
            ddp.reduce_gradients()
            found.append(error_of(optimizer.step))
            loss_of().backward()
            found.append(error_of(optimizer.step))
        return found

    for rung, results in on_every_rung(guarded).items():
        for rank, found in enumerate(results):
            for place, name in ((1, "l.weight"), (5, "emb.weight")):
                assert found[place].startswith(
                    f"RuntimeError: rank {rank}: gradients of 1 parameters were not reduced "
                    f"({name} first)"
                ), rung
                found[place] = "no error"
            assert found == ["no error"] * 9, rung


def test_a_switch_that_is_set_by_hand():
    def switched():
        found = []
        for wrap in (NaiveDDP, LegacyDDP, OverlappedDDP):
            ddp = wrap(linear())
            ddp.require_backward_grad_sync = False
            ddp(x_of_rank()).sum().backward()
            ddp.require_backward_grad_sync = True
            ddp(x_of_rank()).sum().backward()
            found.append(grads(ddp)["weight"])
        return found

    assert launch(switched) == [[4.0] * 3] * 2
