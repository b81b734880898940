"""Unequal numbers of batches. One weight of 1; rank r feeds x = 2r + 1 as often as it has batches,
so that local gradients are 1, 3, 5."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from minddp.ddp import NaiveDDP, OverlappedDDP
from minddp.launcher import launch
from minddp.recorder import record

from .small import EACH_ALONE, calls, error_of, grads, linear, on_every_rung, x_of_rank


def train(ddp, batches):
    """SGD with a step of 1/8; returns the gradient of every batch."""
    found = []
    for _ in range(batches):
        ddp.zero_grad()
        ddp(x_of_rank()).sum().backward()
        with torch.no_grad():
            for param in ddp.parameters():
                param -= param.grad / 8
        found.append(grads(ddp)["weight"])
    return found


def test_what_the_sum_is_divided_by():
    def joined(wrap):
        found = []
        for by_initial in (True, False):
            ddp = wrap(linear())
            with ddp.join(divide_by_initial_world_size=by_initial):
                found.append(train(ddp, [2, 0, 4][dist.get_rank()]))
            found.append(ddp.module.weight.item())  # the same everywhere, also where no batch was
            ddp.zero_grad()
            ddp(x_of_rank()).sum().backward()  # and back to ordinary steps
            found.append(grads(ddp)["weight"])
        return found

    # Ranks 0 and 2 have 1 + 5 for two batches, then rank 2 is alone with 5.
    thirds = [2.0, 2.0, round(5 / 3, 5), round(5 / 3, 5)]
    those_there = [3.0, 3.0, 5.0, 5.0]
    ends = [torch.tensor(1 - sum(some) / 8).item() for some in (thirds, those_there)]
    for rung, results in on_every_rung(joined, world_size=3).items():
        for rank, (first, weight, after, second, other_weight, after_that) in enumerate(results):
            batches = [2, 0, 4][rank]
            assert first == thirds[:batches], rung
            assert second == those_there[:batches], rung
            assert after == after_that == 3.0, rung
            torch.testing.assert_close([weight, other_weight], ends, atol=1e-5, rtol=0)


def test_the_same_weights_bit_for_bit_at_the_end_and_a_second_join():
    def twice(wrap):
        ddp = wrap(nn.Sequential(nn.Linear(1, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
        states = []
        for batches in ([3, 1], [0, 2]):
            with ddp.join():
                for number in range(batches[ddp.rank]):
                    optimizer.zero_grad()
                    x = torch.linspace(0, 1 + number + ddp.rank, 4)[:, None]
                    (ddp(x) ** 2).sum().backward()
                    optimizer.step()
            states.append({name: t.tolist() for name, t in ddp.state_dict().items()})
        return states

    for rung, (first, second) in on_every_rung(twice).items():
        assert first == second, rung
        # Rank 0 is the one that counted 3 batches; then rank 1 went on from there, to 5.
        counts = [state["module.1.num_batches_tracked"] for state in first]
        assert counts == [3, 5], rung


def test_buffers_come_from_the_lowest_rank_with_data():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = linear()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen += 10**self.rank
            return self.layer(x)

    def counted(wrap):
        model = Counting()
        model.rank = dist.get_rank()
        ddp = wrap(model)
        found = []
        with ddp.join():
            for _ in range(ddp.rank + 1):
                ddp(x_of_rank()).sum().backward()
                found.append(model.seen.item())
        return found, model.seen.item()

    # Rank 0 leaves after one batch, and rank 1's 10 is copied; then rank 2 goes on with its own.
    for rung, results in on_every_rung(counted, world_size=3).items():
        assert results == [([1], 210), ([10, 20], 210), ([100, 110, 210], 210)], rung


def test_around_an_accumulation():
    def accumulated(wrap):
        ddp = wrap(linear())
        found = []
        with ddp.join():
            for _ in range(2 - ddp.rank):
                ddp.zero_grad()
                with ddp.no_sync():
                    ddp(x_of_rank()).sum().backward()
                ddp(x_of_rank()).sum().backward()
                found.append(grads(ddp)["weight"])
            if ddp.rank == 0:  # an accumulation that breaks off
                ddp.zero_grad()
                with ddp.no_sync():
                    ddp(x_of_rank()).sum().backward()
                ddp.reduce_gradients()
                found.append(grads(ddp)["weight"])
        return found

    # 2 * 1 and 2 * 3; then rank 0 alone, over two ranks.
    for rung, results in on_every_rung(accumulated).items():
        assert results == [[4.0, 1.0, 0.5], [4.0]], rung


def test_throwing_as_soon_as_one_has_run_out():
    def thrown(wrap):
        ddp = wrap(linear())
        steps = []

        def loop():
            with ddp.join(throw_on_early_termination=True):
                for _ in range(3 - ddp.rank):
                    steps.extend(train(ddp, 1))

        message = error_of(loop)
        ddp.zero_grad()
        ddp(x_of_rank()).sum().backward()
        return message, steps, ddp.module.weight.item(), grads(ddp)["weight"]

    for rung, (still, out) in on_every_rung(thrown).items():
        assert still[0].startswith("RuntimeError: Detected at least one rank that exhausted inputs")
        assert "Out of data: rank 1" in still[0]
        assert out[0] == "RuntimeError: Rank 1 exhausted all inputs.", rung
        assert still[1:] == out[1:] == ([2.0, 2.0], 0.5, 2.0), rung


def test_switched_off_it_adds_no_collective():
    def off(wrap):
        ddp = wrap(linear())
        with ddp.join(enable=False), record() as recording:
            train(ddp, 1)
        with record() as bare:
            train(ddp, 1)
        sent = [call for call in calls(recording) if call[0] != "broadcast"]  # but for the plan
        return sent == calls(bare) and len(sent)

    for rung, results in on_every_rung(off).items():
        assert results == [1, 1], rung


def test_ranks_at_different_places_are_told():
    def apart():
        ddp = NaiveDDP(linear())

        def loop():
            with ddp.join():
                if ddp.rank == 1:
                    ddp(x_of_rank())
                    ddp(x_of_rank())
                else:
                    ddp(x_of_rank()).sum().backward()

        return error_of(loop)

    said = "rank 0 is at reduce, rank 1 is at forward"
    assert (
        launch(apart)
        == [f"RuntimeError: ranks are at different places of the training loop: {said}"] * 2
    )


def test_a_rank_without_data_calls_the_hook_too():
    def hooked():
        called = []

        def hook(state, bucket):
            called.append(bucket.buffer().sum().item())
            return allreduce_hook(None, bucket)

        ddp = OverlappedDDP(linear(), comm_hook=hook, **EACH_ALONE)
        with ddp.join():
            found = train(ddp, 3 * ddp.rank)
        return called, found

    assert launch(hooked) == [([0.0] * 3, []), ([3.0] * 3, [1.5] * 3)]


def test_buckets_are_planned_by_a_rank_that_has_data():
    def planned():
        ddp = OverlappedDDP(nn.Sequential(linear(), linear()), **EACH_ALONE)
        with record() as recording, ddp.join():
            for _ in range(2 * ddp.rank):
                ddp(x_of_rank()).sum().backward()
        reductions = recording.collectives("all_reduce")
        return [event.phase for event in reductions if event.dtype == torch.float32]

    without, with_data = launch(planned)
    assert len(without) == len(with_data)
    assert with_data == ["end_of_backward"] * 2 + ["backward"] * 2
