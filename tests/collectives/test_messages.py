"""Who sends how much to whom: the costs that the module's table promises."""

import math

import pytest
import torch

from minddp import collectives
from minddp.launcher import launch
from minddp.recorder import record


def count_messages(name: str, numel: int) -> tuple[int, int]:
    """Messages and bytes that this rank sends in one all-reduce of float32 values."""
    with record() as recording:
        getattr(collectives, name)(torch.ones(numel))
    sent = [event.nbytes for event in recording.events if event.op == "send"]
    assert {event.op for event in recording.events} <= {"send", "recv"}
    return len(sent), sum(sent)


def ring_star_and_tree(numel: int) -> list[tuple[int, int]]:
    return [count_messages(f"{shape}_all_reduce", numel) for shape in ("ring", "star", "tree")]


@pytest.mark.parametrize("world_size", [2, 4, 7])
def test_messages_and_bytes_of_each_rank(world_size: int) -> None:
    n, numel = world_size, 1003
    nbytes = numel * 4
    by_rank = launch(ring_star_and_tree, numel, world_size=n)
    rings, stars, trees = zip(*by_rank, strict=True)

    for messages, sent in rings:
        assert messages == 2 * (n - 1)
        # 1003 does not divide: chunks differ by one element, and a rank leaves out two of them
        assert sent == pytest.approx(2 * (n - 1) / n * nbytes, abs=2 * 4)
    assert sum(sent for _, sent in rings) == 2 * (n - 1) * nbytes

    assert list(stars) == [(n - 1, (n - 1) * nbytes)] + [(1, nbytes)] * (n - 1)

    assert trees[0][0] == math.ceil(math.log2(n))  # the root only broadcasts
    assert sum(messages for messages, _ in trees) == 2 * (n - 1)
    assert all(sent == messages * nbytes for messages, sent in trees)


def test_ring_bytes_are_exact_where_the_tensor_divides() -> None:
    for n in (2, 5):
        for _, sent in launch(count_messages, "ring_all_reduce", 100 * n, world_size=n):
            assert sent == 2 * (n - 1) / n * (100 * n * 4)
