"""Buffers: broadcast before a forward, averaged after a backward, or left alone."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from minddp.ddp import NaiveDDP, OverlappedDDP
from minddp.launcher import launch
from minddp.recorder import record

from .small import calls, error_of, grads, linear, number, on_every_rung, x_of_rank


class Counting(nn.Module):
    """y = wx; every forward adds 1 + rank to a float and to an integer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear()
        self.register_buffer("amount", torch.zeros(()))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.tensor([True, dist.get_rank() == 0]))

    def forward(self, x):
        self.amount += 1 + dist.get_rank()
        self.count += 1 + dist.get_rank()
        return self.layer(x)


def after_three_steps(**options):
    found = []
    ddp = NaiveDDP(Counting(), **options)
    for _ in range(3):
        ddp(x_of_rank()).sum().backward()
        found.append((number(ddp.module.amount), number(ddp.module.count)))
    assert ddp.module.count.dtype == torch.int64
    return found, ddp.module.mask.tolist()


def test_the_ways_to_treat_buffers():
    def all_ways():
        return [
            after_three_steps(**options)
            for options in (
                {},
                {"buffers": "average"},
                {"buffers": "off"},
                {"broadcast_buffers": False},
                {"forward_sync_buffers": True, "broadcast_buffers": False},
            )
        ]

    first, second = launch(all_ways)
    copied = [(1, 1), (2, 2), (3, 3)], [(2, 2), (3, 3), (4, 4)]
    averaged = [(1.5, 2), (3, 4), (4.5, 6)], [(1.5, 2), (3, 4), (4.5, 6)]  # of integers the maximum
    alone = [(1, 1), (2, 2), (3, 3)], [(2, 2), (4, 4), (6, 6)]
    for rank, results in enumerate((first, second)):
        assert [values for values, _ in results] == [
            way[rank] for way in (copied, averaged, alone, alone, copied)
        ]
        assert [mask for _, mask in results] == [[True, True]] * 5  # wrapping copied it


def test_statistics_of_batch_norm():
    """Means of 1 and 3, momentum 0.1: 0.1 and 0.3 after the first batch."""

    def statistics(buffers):
        ddp = OverlappedDDP(nn.Sequential(linear(), nn.BatchNorm1d(1)), buffers=buffers)
        found = []
        for _ in range(2):
            x = torch.tensor([[0.0], [2.0]]) + 2 * ddp.rank
            ddp(x).sum().backward()
            norm = ddp.module[1]
            found.append((number(norm.running_mean), norm.num_batches_tracked.item()))
        return found

    def both():
        return statistics("broadcast"), statistics("average")

    averaged = [(0.2, 1), (0.38, 2)]
    assert launch(both) == [([(0.1, 1), (0.19, 2)], averaged), ([(0.3, 1), (0.39, 2)], averaged)]


def test_two_forwards_before_one_backward():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = linear()
            self.register_buffer("scale", torch.ones(1))

        def forward(self, x):
            return self.layer(x) * self.scale

    def twice(wrap):
        found = []
        for buffers in ("broadcast", "average"):
            ddp = wrap(Scaled(), buffers=buffers)
            (ddp(x_of_rank()).sum() + ddp(2 * x_of_rank()).sum()).backward()
            found.append(grads(ddp)["layer.weight"])
            norm = wrap(nn.Sequential(nn.BatchNorm1d(1), linear()), buffers=buffers)
            x = torch.tensor([[1.0], [2.0], [4.0]])
            (norm(x).pow(2).sum() + norm(3 * x).pow(2).sum()).backward()
            found.append(grads(norm)["1.weight"])
        return found

    # Normalised values have a mean square of 1: 3 samples, twice, the derivative of a square.
    for rung, results in on_every_rung(twice).items():
        for rank in results:
            torch.testing.assert_close(rank, [6.0, 12.0] * 2, atol=1e-3, rtol=0)
        assert results[0] == results[1], rung


def test_a_buffer_that_was_reassigned_is_broadcast():
    def reassigned():
        ddp = NaiveDDP(Counting())
        ddp.module.amount = torch.full((), 10.0 * (1 + dist.get_rank()))
        ddp(x_of_rank())
        return ddp.module.amount.item()

    assert launch(reassigned) == [11.0, 12.0]


def test_when_buffers_travel():
    def counted():
        ddp = NaiveDDP(nn.Sequential(linear(), nn.BatchNorm1d(1)))
        x = torch.randn(4, 1)

        def forward(**how):
            with record() as recording, torch.set_grad_enabled(how.get("grad", True)):
                ddp(x)
            return calls(recording)

        found = [forward(), forward(grad=False)]
        with ddp.no_sync():
            found.append(forward())
        ddp.eval()
        found.append(forward())
        return found

    # Mean and variance in one, the integer count in another; else nothing.
    both = [("broadcast", 2), ("broadcast", 1)]
    assert launch(counted) == [[both, [], [], []]] * 2


def test_an_unknown_way():
    def unknown():
        return error_of(NaiveDDP, linear(), buffers="mean")

    assert launch(unknown, world_size=1) == [
        "ValueError: buffers must be one of ('broadcast', 'average', 'off'), not 'mean'"
    ]
