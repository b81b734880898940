"""What each rung sends, and what all of them promise whatever the loop looks like."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from minddp.ddp import FlatDDP, NaiveDDP
from minddp.launcher import launch
from minddp.recorder import record

from .small import Layers, Weights, calls, grads, linear, on_every_rung, x_of_rank


def test_naive_sends_each_parameter_and_flat_all_of_a_dtype():
    def sent():
        kinds = [torch.float32, torch.float64, torch.float32, torch.float64]
        counts = []
        for wrap in (NaiveDDP, FlatDDP):
            ddp = wrap(Weights([2, 3, 4, 5], kinds))
            with record() as recording:
                ddp(x_of_rank()).sum().backward()
            assert all(event.phase == "end_of_backward" for event in recording.events)
            counts.append([(event.op, event.numel, event.dtype) for event in recording.events])
        return counts

    for naive, flat in launch(sent):
        single, double = torch.float32, torch.float64
        sizes = [(3, single), (4, double), (5, single), (6, double)]
        assert naive == [("all_reduce", *size) for size in sizes]
        assert flat == [("all_reduce", 2 + 4 + 2, single), ("all_reduce", 3 + 5 + 2, double)]


def test_gradients_add_up_over_backwards_and_are_averaged_once():
    def several(wrap):
        ddp = wrap(linear())
        x = x_of_rank()
        ddp(x).sum().backward()
        once = grads(ddp)["weight"]
        loss = ddp(x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        again = grads(ddp)["weight"]
        first, second = ddp(x), ddp(10 * x)
        first.sum().backward()
        second.sum().backward()
        crossed = grads(ddp)["weight"]
        (ddp(x).sum() + ddp(10 * x).sum()).backward()
        summed = grads(ddp)["weight"]
        ddp.reduce_gradients()
        return once, again, crossed, summed, grads(ddp)["weight"]

    # 2; and twice 2 more; and 2 and 20 more, twice; averaging once more changes nothing.
    for rung, results in on_every_rung(several).items():
        assert results == [(2.0, 6.0, 28.0, 50.0, 50.0)] * 2, rung


def test_gradients_that_are_set_to_zero_set_to_none_or_written_by_hand():
    def written(wrap):
        ddp = wrap(linear())
        found = []
        for how in ("none", "zero", "ten", "none", "none"):
            ddp.zero_grad(set_to_none=how == "none")
            if how == "ten":
                ddp.module.weight.grad = torch.full((1, 1), 10.0)
            ddp(x_of_rank()).sum().backward()
            found.append(grads(ddp)["weight"])
        ddp.module.weight.grad = x_of_rank()
        ddp.reduce_gradients()
        return [*found, grads(ddp)["weight"]]

    for rung, results in on_every_rung(written).items():
        assert results == [[2.0, 2.0, 12.0, 2.0, 2.0, 2.0]] * 2, rung


def test_backward_through_a_sub_module_or_a_method_only():
    class Model(Layers):
        def penalty(self):
            return (self.b.weight * x_of_rank()).sum()

    def around_forward(wrap):
        ddp = wrap(Model())
        found = []
        for _ in range(2):
            ddp.zero_grad()
            ddp.module.a(x_of_rank()).sum().backward()
            found.append(grads(ddp))
            ddp.zero_grad()
            ddp.module.penalty().backward()
            found.append(grads(ddp))
        return found

    a, b = {"a.weight": 2.0, "b.weight": None}, {"a.weight": None, "b.weight": 2.0}
    for rung, results in on_every_rung(around_forward).items():
        assert results == [[a, b, a, b]] * 2, rung


def test_a_rank_whose_backward_reaches_no_parameter_takes_part():
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = linear()

        def forward(self, x, shut):
            return {"y": [x.exp() if shut else self.layer(x)]}

    def gated(wrap):
        ddp = wrap(Gate())
        found = []
        for shut in ([1], [0, 2], [1], [0, 1, 2]):
            ddp.zero_grad()
            x = x_of_rank().requires_grad_()
            ddp(x, dist.get_rank() in shut)["y"][0].sum().backward()
            found.append(grads(ddp)["layer.weight"])
        return found

    # The locals are 1, 3, 5; the average is over all three ranks; None where no rank has any.
    for rung, results in on_every_rung(gated, world_size=3).items():
        assert results == [[2.0, 1.0, 2.0, None]] * 3, rung


def test_autograd_grad_communicates_nothing_and_a_gradient_penalty_is_averaged():
    class Parabola(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.b = nn.Parameter(torch.ones(())), nn.Parameter(torch.zeros(()))

        def forward(self, x, use=True):
            return self.w * x**2 + self.b if use else x**3

    def penalty(wrap):
        ddp = wrap(Parabola(), buffers="off")
        found = []
        for _ in range(3):
            ddp.zero_grad()
            x = x_of_rank().requires_grad_()
            with record() as recording:
                torch.autograd.grad(ddp(x).sum(), list(ddp.parameters()))
                torch.autograd.grad(ddp(x, use=dist.get_rank() == 0).sum(), x)
                ddp(x).sum().backward(inputs=[x])
                (slope,) = torch.autograd.grad(ddp(x).sum(), x, create_graph=True)
            assert grads(ddp) == {"w": None, "b": None}
            (slope**2).sum().backward()
            found.append((calls(recording), grads(ddp)))
        return found

    # The slope is 2wx: its square has the gradient 8wx² = 8 and 72.
    for rung, results in on_every_rung(penalty).items():
        assert results == [[([], {"w": 40.0, "b": None})] * 3] * 2, rung


def test_unused_on_all_ranks_stays_as_it_was_and_used_on_some_is_averaged():
    def unequal(wrap):
        ddp = wrap(Layers("abc"))
        found = []
        for which in ("ab", "bb", "ab"):
            ddp.zero_grad()
            ddp(x_of_rank(), which[dist.get_rank()]).sum().backward()
            found.append(grads(ddp))
        ddp.module.c.weight.grad = torch.full((1, 1), 7.0)  # stays on both ranks
        ddp(x_of_rank(), "a").sum().backward()
        return [*found, grads(ddp)]

    first = {"a.weight": 0.5, "b.weight": 1.5, "c.weight": None}
    second = {"a.weight": None, "b.weight": 2.0, "c.weight": None}
    last = {"a.weight": 2.5, "b.weight": 1.5, "c.weight": 7.0}
    for rung, results in on_every_rung(unequal).items():
        assert results == [[first, second, first, last]] * 2, rung


def test_no_collective_in_eval_nor_without_grad():
    def quiet(wrap):
        ddp = wrap(nn.Sequential(linear(), nn.BatchNorm1d(1)))
        x = torch.randn(4, 1)
        with record() as recording:
            if dist.get_rank() == 0:  # the other rank would be missed
                with torch.no_grad():
                    ddp(x)
                ddp.eval()
                ddp(x)
                ddp.train()
        return calls(recording)

    assert set(map(str, on_every_rung(quiet).values())) == {"[[], []]"}
