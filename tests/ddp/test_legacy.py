"""The walk of the fixed-size buffer, and the original's names."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from minddp.ddp import LegacyDDP
from minddp.launcher import launch
from minddp.recorder import record

from .small import Weights, error_of, grads, linear, x_of_rank


def test_walk_in_registration_order_a_large_parameter_at_once_no_tail():
    def walk(sizes, buffer_size):
        ddp = LegacyDDP(Weights(sizes), buffer_size=buffer_size)
        steps = []
        for _ in range(2):
            ddp.zero_grad()
            with record() as recording:
                ddp(x_of_rank()).sum().backward()
            assert all(event.phase == "end_of_backward" for event in recording.events)
            steps.append([event.numel for event in recording.collectives("all_reduce")])
            assert len(recording.events) == len(steps[-1])
        for weight in ddp.module.weights:  # each a mean: the gradient is spread over it
            torch.testing.assert_close(weight.grad, torch.full_like(weight, 2 / weight.numel()))
        return steps

    def walks():
        return [
            walk(sizes, buffer_size)
            for sizes, buffer_size in [
                ([2, 9, 3, 2, 4], 5),
                ([2, 2, 1, 1], 4),
                ([2, 2, 1, 1], 2**28),
                ([2, 3], 0),
                ([6, 1, 5, 5], 5),
            ]
        ]

    # Elements of gradients, and a flag for each parameter.
    expected = [
        [9 + 1, 2 + 3 + 2, 2 + 1, 4 + 1],  # 9 overtakes the 2 that is waiting in the buffer
        [2 + 2 + 2, 1 + 1 + 2],  # the second is not as long as the buffer
        [6 + 4],
        [2 + 1, 3 + 1],
        [6 + 1, 1 + 1, 5 + 1, 5 + 1],
    ]
    for rank in launch(walks):
        assert rank == [[numels, numels] for numels in expected]


def test_buffer_is_shared_by_all_and_no_larger_than_the_model():
    def memory():
        small = LegacyDDP(Weights([2, 9, 3, 2, 4]), buffer_size=5)
        default = LegacyDDP(Weights([2, 9]))
        for ddp in (small, default):
            ddp(x_of_rank()).sum().backward()
        return [buffer.numel() for ddp in (small, default) for buffer in ddp._memory.values()]

    # At most 5 elements and 5 flags; all 11 elements and 2 flags.
    assert launch(memory) == [[10, 13]] * 2


def test_buffer_per_dtype():
    def dtypes():
        kinds = [torch.float32, torch.float64, torch.float32]
        ddp = LegacyDDP(Weights([2, 3, 4], kinds), buffer_size=6)
        with record() as recording:
            ddp(x_of_rank()).sum().backward()
        for weight in ddp.module.weights:
            torch.testing.assert_close(weight.grad, torch.full_like(weight, 2 / weight.numel()))
        return [(event.numel, event.dtype) for event in recording.events]

    assert launch(dtypes) == [[(8, torch.float32), (4, torch.float64)]] * 2


def test_names_of_the_original():
    def original():
        ddp = LegacyDDP(linear(), None, 2**20, world_size=2)
        ddp.accumulate_grads = True
        ddp(x_of_rank()).sum().backward()
        local = grads(ddp)["weight"]
        ddp.all_reduce_grads()
        averaged = grads(ddp)["weight"]
        ddp.accumulate_grads = False
        ddp.zero_grad()
        ddp(x_of_rank()).sum().backward()
        with ddp.no_sync():
            inside = ddp.accumulate_grads
        return local, averaged, grads(ddp)["weight"], inside, ddp.accumulate_grads

    assert launch(original) == [(1.0, 2.0, 2.0, True, False), (3.0, 2.0, 2.0, True, False)]


def test_a_wrong_world_size_is_refused_not_divided_by():
    def wrong():
        layer = linear()
        message = error_of(LegacyDDP, layer, world_size=8)
        with record() as recording:  # and no hook of the failed wrapper is left
            layer(x_of_rank()).sum().backward()
        return message, len(recording.events), grads(layer)["weight"] == 2 * dist.get_rank() + 1

    for message, collectives, local in launch(wrong):
        assert message.startswith("ValueError: world_size=8, but the process group has 2 ranks")
        assert (collectives, local) == (0, True)


@pytest.mark.parametrize("size", [-1, 2.0, True, None])
def test_buffer_size_is_a_number_of_elements(size):
    with pytest.raises(ValueError, match="buffer_size is a number of elements, 0 or more, not"):
        LegacyDDP(linear(), buffer_size=size)
