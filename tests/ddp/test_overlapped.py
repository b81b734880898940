"""When buckets are launched, in which order, and what happens to the exceptions to the rule."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from minddp.ddp import OverlappedDDP
from minddp.launcher import launch
from minddp.recorder import record

from .small import EACH_ALONE, Weights, calls, error_of, grads, linear, x_of_rank

KIB = 1 / 1024  # in MiB


def sent_in_steps(ddp, orders):
    """For each order a backward: the elements of every all-reduce, the phases, other calls."""
    steps = []
    for order in orders:
        ddp.zero_grad()
        with record() as recording:
            ddp(x_of_rank(), order).sum().backward()
        reductions = recording.collectives("all_reduce")
        phases = {event.phase for event in reductions}
        others = [event.op for event in recording.events if event.op != "all_reduce"]
        steps.append(([event.numel for event in reductions], phases, others))
    return steps


def test_the_first_backward_watches_and_the_next_ones_send_meanwhile():
    def watched():
        return sent_in_steps(OverlappedDDP(Weights([1, 2, 3]), **EACH_ALONE), [None] * 3)

    at_the_end = ([4, 3, 2], {"end_of_backward"}, ["broadcast"])  # the broadcast is of the plan
    meanwhile = ([4, 3, 2], {"backward"}, [])
    assert launch(watched) == [[at_the_end, meanwhile, meanwhile]] * 2


def test_buckets_follow_the_order_of_arrival_on_rank_0():
    def planned():
        ddp = OverlappedDDP(Weights([1, 2, 3, 4]), **EACH_ALONE)
        order = [1, 3, 0, 2] if dist.get_rank() == 0 else [0, 1, 2, 3]
        steps = sent_in_steps(ddp, [order] * 3)
        right = [torch.allclose(w.grad.sum(), torch.tensor(2.0)) for w in ddp.module.weights]
        return [numels for numels, _, _ in steps], right

    # First in the reverse order of registration; then as rank 0 saw them: 2, 0, 3, 1. On the other
    # rank gradients arrive as 3, 2, 1, 0, and are sent in the order of rank 0 all the same.
    for numels, right in launch(planned):
        assert numels == [[5, 4, 3, 2], [4, 2, 5, 3], [4, 2, 5, 3]]
        assert all(right)


def test_a_bucket_waits_for_its_turn():
    def other_way_round():
        ddp = OverlappedDDP(Weights([1, 2, 3]), **EACH_ALONE)
        sent_in_steps(ddp, [[0, 1, 2]])
        ddp.zero_grad()
        waiting = []
        for weight in ddp.module.weights:
            weight.register_post_accumulate_grad_hook(lambda _: waiting.append(len(events)))
        with record() as recording:
            events = recording.events
            order = [0, 1, 2] if dist.get_rank() == 0 else [2, 1, 0]
            ddp(x_of_rank(), order).sum().backward()
        return waiting, calls(recording)

    # How many were launched when the first, second and third gradient had arrived.
    first, second = launch(other_way_round)
    assert first[0] == [1, 2, 3]
    assert second[0] == [0, 0, 3]
    assert first[1] == second[1] == [("all_reduce", numel) for numel in (4, 3, 2)]


def test_sizes_of_buckets_are_thresholds_in_mib_the_first_by_itself():
    def sizes(**capacities):
        ddp = OverlappedDDP(Weights([256] * 5), **capacities)
        return [numels for numels, _, _ in sent_in_steps(ddp, [None] * 2)]

    def all_sizes():
        return (
            sizes(),
            sizes(bucket_cap_mb=2 * KIB, first_bucket_mb=1 * KIB),
            sizes(bucket_cap_mb=1.5 * KIB),
            sizes(bucket_cap_mb=None, first_bucket_mb=4 * KIB),
            sizes(bucket_cap_mb_list=[1 * KIB, 3 * KIB, 1 * KIB]),
        )

    for default, small, between, none, listed in launch(all_sizes):
        assert default == [[5 * 257]] * 2
        assert small == [[257, 2 * 257, 2 * 257]] * 2
        assert between == [[2 * 257, 2 * 257, 257]] * 2  # the first is never above the others
        assert none == [[4 * 257, 257]] * 2
        assert listed == [[257, 3 * 257, 257]] * 2


def test_buckets_of_one_dtype_ordered_by_when_they_are_complete():
    def mixed():
        single, double = torch.float32, torch.float64
        ddp = OverlappedDDP(Weights([1, 2, 3, 4], [single, double, single, single]))
        with record() as recording:
            ddp(x_of_rank()).sum().backward()
        return [(event.numel, event.dtype) for event in recording.collectives("all_reduce")]

    # The double arrives third of four: its bucket is complete before the bucket of the singles.
    assert launch(mixed) == [[(3, torch.float64), (1 + 3 + 4 + 3, torch.float32)]] * 2


def test_a_parameter_left_out_holds_its_bucket_until_the_end():
    def left_out():
        ddp = OverlappedDDP(Weights([1, 2, 3]), **EACH_ALONE)
        sent_in_steps(ddp, [[0, 1, 2]])
        ddp.zero_grad()
        with record() as recording:
            ddp(x_of_rank(), [0, 2]).sum().backward()
        return [(e.numel, e.phase) for e in recording.events], ddp.module.weights[1].grad

    at_the_end = [(3, "end_of_backward"), (2, "end_of_backward")]
    assert launch(left_out) == [([(4, "backward"), *at_the_end], None)] * 2


class Twice(nn.Module):
    """y = l(l(x)), each l under a checkpoint of its own or not: with re-entrant checkpoints the
    gradient of l arrives twice in one backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.l = linear(), linear()

    def forward(self, x, reentrant):
        x = self.first(x)
        for _ in range(2):
            x = checkpoint(self.l, x, use_reentrant=True) if reentrant else self.l(x)
        return x


def test_a_second_arrival_is_known_from_the_first_backward():
    def known(**options):
        ddp = OverlappedDDP(Twice(), **options)
        found = []
        for _ in range(3):
            ddp.zero_grad()
            ddp(x_of_rank(), reentrant=True).sum().backward()
            found.append(grads(ddp))
        return found, len(ddp._deferred)

    def both():
        return known(**EACH_ALONE), known(gradient_as_bucket_view=True)

    expected = [{"first.weight": 2.0, "l.weight": 4.0}] * 3
    assert launch(both) == [((expected, 1), (expected, 1))] * 2


def test_a_second_arrival_after_the_bucket_was_sent_raises_by_name():
    def late():
        ddp = OverlappedDDP(Twice(), **EACH_ALONE)
        ddp(x_of_rank(), reentrant=False).sum().backward()
        message = error_of(ddp(x_of_rank(), reentrant=True).sum().backward)
        ddp.zero_grad()
        ddp(x_of_rank(), reentrant=False).sum().backward()  # no harm was done
        return message, grads(ddp)

    for rank, (message, after) in enumerate(launch(late)):
        assert message.startswith(f"RuntimeError: rank {rank}: l.weight got a second gradient")
        assert "use_reentrant=False" in message
        assert after == {"first.weight": 2.0, "l.weight": 4.0}


def test_a_second_arrival_before_the_bucket_is_sent_counts_with_the_first():
    def early(**options):
        ddp = OverlappedDDP(Twice(), **options)
        ddp(x_of_rank(), reentrant=False).sum().backward()
        ddp.zero_grad()
        ddp(x_of_rank(), reentrant=True).sum().backward()
        return grads(ddp)

    def both():
        return early(), early(gradient_as_bucket_view=True)

    assert launch(both) == [({"first.weight": 2.0, "l.weight": 4.0},) * 2] * 2


def test_gradients_as_views_of_the_buckets():
    def storages(view):
        ddp = OverlappedDDP(Weights([2, 3, 4]), gradient_as_bucket_view=view)
        found = []
        for step in range(4):
            ddp.zero_grad(set_to_none=step != 2)
            with ddp.no_sync():
                ddp(x_of_rank()).sum().backward()
            ddp(x_of_rank()).sum().backward()
            gradients = [weight.grad for weight in ddp.module.weights]
            totals = [round(gradient.sum().item(), 5) for gradient in gradients]
            memory = {gradient.untyped_storage().data_ptr() for gradient in gradients}
            found.append((len(memory), totals))
        return found

    def both():
        return storages(True), storages(False)

    once, apart = (1, [4.0] * 3), (3, [4.0] * 3)
    assert launch(both) == [([once] * 4, [apart] * 4)] * 2
