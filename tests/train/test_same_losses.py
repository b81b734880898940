"""The same global batch and seed give the same losses, whatever the number of ranks."""

from __future__ import annotations

import pytest

from minddp.ddp import DDP_BACKENDS
from minddp.train import RunResult
from tests.train.small import largest_difference, small, train_on

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def alone() -> RunResult:
    return train_on(1, small())[0]


def test_one_process_learns(alone):
    assert len(alone.losses) == 50
    assert alone.losses[-1] < alone.losses[0] - 0.5
    assert list(alone.held_out_losses) == [25, 50]
    assert alone.held_out_losses[50] < alone.held_out_losses[25]


@pytest.mark.parametrize("name", sorted(set(DDP_BACKENDS)))
def test_two_ranks_under_every_kind_of_ddp(alone, name):
    check(alone, train_on(2, small(ddp_backend=name)))


def test_four_ranks(alone):
    check(alone, train_on(4, small()))


def test_as_many_ranks_as_rows():
    check(train_on(1, small(batch_size=3))[0], train_on(3, small(batch_size=3)))


def check(alone: RunResult, ranks: list[RunResult]) -> None:
    for result in ranks:
        assert largest_difference(result.losses, alone.losses) < TOLERANCE
        held_out = list(result.held_out_losses.values())
        assert largest_difference(held_out, list(alone.held_out_losses.values())) < TOLERANCE
        assert result.tokens_per_second > 0
