"""A model that changes after it was wrapped; models that differ from the start."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from .small import Layers, error_of, grads, linear, on_every_rung, x_of_rank


def backward(ddp, which):
    ddp.zero_grad()
    ddp(x_of_rank(), which).sum().backward()
    return grads(ddp)


def test_freezing_and_unfreezing():
    def changed(wrap):
        model = Layers("abc")
        model.b.weight.requires_grad_(False)
        ddp = wrap(model)
        found = [backward(ddp, "abc")]
        model.a.weight.requires_grad_(False)  # the first that is registered
        found += [backward(ddp, "abc"), backward(ddp, "abc")]
        model.b.weight.requires_grad_(True)
        found += [backward(ddp, "abc"), backward(ddp, "abc"), backward(ddp, "b")]
        return found

    a, b, c = {"a.weight": 2.0}, {"b.weight": 2.0}, {"c.weight": 2.0}
    nothing = dict.fromkeys([*a, *b, *c])
    steps = [a | c, c, c, b | c, b | c, b]
    for rung, results in on_every_rung(changed).items():
        assert results == [[nothing | step for step in steps]] * 2, rung


def test_unfrozen_however_it_is_reached():
    def reached(wrap):
        found = []
        for how in ("training", "eval", "sub-module", "no_sync"):
            model = nn.Sequential(linear(), linear())
            model[0].requires_grad_(False)
            ddp = wrap(model)
            ddp(x_of_rank()).sum().backward()
            ddp.zero_grad()
            model[0].requires_grad_(True)
            if how == "eval":
                ddp.eval()
            if how == "no_sync":
                with ddp.no_sync():
                    ddp(x_of_rank()).sum().backward()
                ddp.reduce_gradients()
            else:
                (model if how == "sub-module" else ddp)(x_of_rank()).sum().backward()
            found.append(grads(ddp))
        return found

    for rung, results in on_every_rung(reached).items():
        assert results == [[{"0.weight": 2.0, "1.weight": 2.0}] * 4] * 2, rung


def test_cast_to_another_precision():
    def cast(wrap):
        found = []
        for mode in (True, False):
            ddp = wrap(linear())
            ddp(x_of_rank()).sum().backward()
            ddp.zero_grad()
            ddp.double().train(mode)
            for _ in range(3):
                ddp.zero_grad()
                ddp(x_of_rank(torch.float64) / 3).sum().backward()
                grad = ddp.module.weight.grad
                found.append((grad.dtype, abs(grad.item() - 2 / 3) < 1e-15))
        return found

    for rung, results in on_every_rung(cast).items():
        assert results == [[(torch.float64, True)] * 6] * 2, rung


def test_a_new_parameter_is_refused_by_name():
    def replaced(wrap):
        found = []
        for change in ("replace", "add", "fill"):
            model = Layers()
            model.register_parameter("extra", None)
            ddp = wrap(model)
            if change == "replace":
                model.b = linear()
            elif change == "add":
                model.c = linear()
            else:
                model.extra = nn.Parameter(torch.ones(1))
            found.append(error_of(ddp, x_of_rank(), "ab"))
        return found

    for rung, results in on_every_rung(replaced).items():
        for found in results:
            for name, message in zip(["b.weight", "c.weight", "extra"], found, strict=True):
                said = f"RuntimeError: {name} is not the one that was wrapped"
                assert message.startswith(said), rung
                assert "build the optimizer again" in message


def test_what_brings_no_parameter_may_be_replaced():
    def replaced(wrap):
        model = nn.Sequential(linear(), nn.ReLU())
        ddp = wrap(model)
        model[1] = nn.Identity()
        model.add_module("2", nn.Dropout(0.0))
        found = []
        for _ in range(2):
            ddp.zero_grad()
            ddp(x_of_rank()).sum().backward()
            found.append(grads(ddp)["0.weight"])
        return found

    for rung, results in on_every_rung(replaced).items():
        assert results == [[2.0, 2.0]] * 2, rung


def test_parameters_swapped_for_one_call():
    def swapped(wrap):
        ddp = wrap(linear())
        other = torch.full((1, 1), 5.0, requires_grad=True)
        out = torch.func.functional_call(ddp, {"module.weight": other}, (x_of_rank(),))
        (grad,) = torch.autograd.grad(out.sum(), other)
        ddp(x_of_rank()).sum().backward()
        return out.item(), grad.item(), grads(ddp)["weight"]

    for rung, results in on_every_rung(swapped).items():
        assert results == [(5.0, 1.0, 2.0), (15.0, 3.0, 2.0)], rung


def test_frozen_on_one_rank_only_is_seen_in_debug_mode():
    def one_only(wrap):
        model = Layers()
        ddp = wrap(model, debug=True)
        if ddp.rank == 1:
            model.a.weight.requires_grad_(False)
        return error_of(backward, ddp, "ab")

    for rung, results in on_every_rung(one_only).items():
        for message in results:
            assert "rank 0 and rank 1 have a different" in message, rung


def test_models_that_differ_in_memory_order_only():
    def channels_last_on_rank_1(wrap):
        conv = nn.Conv2d(2, 2, 3)
        if dist.get_rank() == 1:
            conv.to(memory_format=torch.channels_last)
        return error_of(wrap, conv)

    for rung, results in on_every_rung(channels_last_on_rank_1).items():
        assert results[0] == results[1], rung
        assert "rank 1 has [weight (2, 2, 3, 3) with strides (18, 1, 6, 2) float32" in results[0]


def test_wrapping_makes_weights_and_buffers_those_of_the_first_rank():
    def started(wrap):
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        model[0].weight.requires_grad_(False)
        for tensor in model.state_dict().values():
            tensor.fill_(7 + dist.get_rank())
        parameters = list(model.parameters())
        ddp = wrap(model)
        assert all(p is q for p, q in zip(parameters, ddp.parameters(), strict=True))
        assert list(ddp.state_dict())[0] == "module.0.weight"
        values = {value.float().mean().item() for value in model.state_dict().values()}
        for tensor in model.state_dict().values():
            tensor.fill_(7 + dist.get_rank())
        wrap(model, init_sync=False)
        return values, model[0].weight[0, 0].item()

    for rung, results in on_every_rung(started).items():
        assert results == [({7.0}, 7.0), ({7.0}, 8.0)], rung
