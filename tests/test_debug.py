"""Debug mode: collectives that do not match end in an error on every rank, before they run."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from minddp.debug import checked_collectives, tag
from minddp.launcher import RankFailed, launch


def other_order():
    named = {"a": torch.ones(1), "b": torch.full((1,), 10.0)}
    for name in ("a", "b") if dist.get_rank() == 0 else ("b", "a"):
        with tag(name):
            dist.all_reduce(named[name])


def other_size():
    dist.all_reduce(torch.ones(2 + dist.get_rank()))


def other_dtype():
    dist.all_reduce(torch.ones(2, dtype=[torch.float32, torch.float64][dist.get_rank()]))


def other_operation():
    if dist.get_rank() == 0:
        dist.broadcast(torch.ones(3), src=0)
    else:
        dist.barrier()


def complaint(function):
    try:
        with checked_collectives():
            function()
    except RuntimeError as error:
        return str(error)
    return "no complaint"


@pytest.mark.parametrize(
    ("function", "first", "second"),
    [
        (other_order, "all_reduce of (1,) float32, in 'a'", "all_reduce of (1,) float32, in 'b'"),
        (other_size, "all_reduce of (2,) float32", "all_reduce of (3,) float32"),
        (other_dtype, "all_reduce of (2,) float32", "all_reduce of (2,) float64"),
        (other_operation, "broadcast of (3,) float32, root 0", "barrier"),
    ],
)
def test_mismatch_raises_on_every_rank(function, first, second):
    said = launch(complaint, function)
    assert said[0] == said[1]
    assert f"rank 0 has [collective 1: {first}]" in said[0]
    assert f"rank 1 has [collective 1: {second}]" in said[0]


def test_matching_collectives_run_unchanged_and_torch_ddp_is_checked_too():
    def train():
        with checked_collectives() as checks:
            model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1, bias=False))
            model(torch.full((1, 2), 1.0 + dist.get_rank())).sum().backward()
        return model.module.weight.grad.tolist(), checks._number

    for gradient, collectives in launch(train):
        assert gradient == [[1.5, 1.5]]
        assert collectives >= 2  # at least the weights' broadcast and the gradients' all-reduce


def test_debug_variable_checks_a_launched_function():
    with pytest.raises(RankFailed, match=r"all_reduce of \(2,\) float32.*all_reduce of \(3,\)"):
        launch(other_size, env={"MINDDP_DEBUG": "1"}, prints="off")
