"""Who sends how much to whom: the costs that the module's table promises."""

import math
from collections import Counter
from typing import Any

import pytest
import torch
import torch.distributed as dist

from minddp import collectives
from minddp.launcher import launch


def count_messages(name: str, numel: int) -> tuple[int, int]:
    """Messages and bytes that this rank sends in one all-reduce of float32 values."""
    sent: Counter[str] = Counter()
    plain_isend = dist.isend

    def counting_isend(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        sent["messages"] += 1
        sent["bytes"] += tensor.numel() * tensor.element_size()
        return plain_isend(tensor, *args, **kwargs)

    dist.isend = counting_isend
    try:
        getattr(collectives, name)(torch.ones(numel))
    finally:
        dist.isend = plain_isend
    return sent["messages"], sent["bytes"]


@pytest.mark.parametrize("world_size", [2, 3, 4, 7])
def test_ring_bytes(world_size: int) -> None:
    n, numel = world_size, 840 * world_size
    for messages, nbytes in launch(count_messages, "ring_all_reduce", numel, world_size=n):
        assert messages == 2 * (n - 1)
        assert nbytes == 2 * (n - 1) / n * numel * 4


def test_ring_bytes_when_sizes_do_not_divide() -> None:
    n, numel = 4, 1003
    for _, nbytes in launch(count_messages, "ring_all_reduce", numel, world_size=n):
        # chunks differ by one element at most, and a rank skips two of them
        assert nbytes == pytest.approx(2 * (n - 1) / n * numel * 4, abs=2 * 4)


@pytest.mark.parametrize("world_size", [2, 5, 8])
def test_star_and_tree_messages(world_size: int) -> None:
    n, numel = world_size, 100

    def both() -> list[tuple[int, int]]:
        return [count_messages(f"{shape}_all_reduce", numel) for shape in ("star", "tree")]

    by_rank = launch(both, world_size=n)
    stars, trees = zip(*by_rank, strict=True)
    assert list(stars) == [(n - 1, (n - 1) * numel * 4)] + [(1, numel * 4)] * (n - 1)
    assert trees[0][0] == math.ceil(math.log2(n))  # the root only broadcasts
    assert sum(messages for messages, _ in trees) == 2 * (n - 1)
    assert all(nbytes == messages * numel * 4 for messages, nbytes in trees)
