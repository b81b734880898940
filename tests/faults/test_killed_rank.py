"""A rank is killed in the middle of a bucket: nobody hangs, and nobody trains on."""

from __future__ import annotations

import gc
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import minddp

from .models import linear, x_of
from .rungs import RUNGS, Rung

LIMIT = 60.0  # seconds: how long a collective may wait; the survivors must not need it


@pytest.mark.parametrize("world_size", [2, 3])
def test_every_survivor_raises_and_keeps_its_weights(world_size: int, tmp_path: Path) -> None:
    """The last rank is a process of its own that the launcher does not watch over, so that the
    others are not stopped but live to tell what they saw."""
    reports = minddp.launch(
        outlive, RUNGS, str(tmp_path), world_size, world_size=world_size - 1, backend=None
    )
    for rank, found in enumerate(reports):
        for rung, (error, seconds, moved) in zip(RUNGS, found, strict=True):
            where = f"{rung.label}, rank {rank}"
            assert error is not None, f"{where}: backward returned as if nothing had happened"
            assert f"rank {rank}" in error and "step 3" in error, f"{where}: {error}"
            assert seconds < LIMIT, f"{where}: it took the time-out to notice"
            assert not moved, f"{where}: trained on"


def outlive(rungs: tuple[Rung, ...], folder: str, world_size: int) -> list[tuple]:
    """Train in one group after the other; each loses its last rank, a child of rank 0."""
    found = []
    for index, rung in enumerate(rungs):
        child = os.fork() if os.environ["RANK"] == "0" else None
        rank = world_size - 1 if child == 0 else int(os.environ["RANK"])
        try:
            found.append(
                train_until_the_last_rank_dies(rung, f"{folder}/{index}", rank, world_size)
            )
        finally:
            if child == 0:
                os._exit(1)  # it should have been killed before
        if child:
            os.waitpid(child, 0)
    return found


def train_until_the_last_rank_dies(rung: Rung, store: str, rank: int, world_size: int) -> tuple:
    """(the error, seconds until it came, whether the weights moved) of the third step."""
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, world_size),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=LIMIT),
    )
    model = rung.wrap(nn.Sequential(*(linear() for _ in range(4))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(1 if rung.practised else 2):
        train_one_step(model, optimizer, rank)
    before = [p.detach().clone() for p in model.parameters()]
    dist.barrier()
    if rank == world_size - 1:
        die_half_way(model)
    error = None
    start = time.monotonic()
    try:
        train_one_step(model, optimizer, rank)
    except RuntimeError as caught:
        error = str(caught)
    seconds = time.monotonic() - start
    moved = any(not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    del model, optimizer
    dist.destroy_process_group()
    gc.collect()
    return error, seconds, moved


def train_one_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> None:
    optimizer.zero_grad()
    model(x_of(rank)).sum().backward()
    optimizer.step()


def die_half_way(model: nn.Module) -> None:
    """Backward comes from the last layer: two gradients are ready, the third never will be."""
    model.module[1].weight.register_hook(lambda grad: os.kill(os.getpid(), signal.SIGKILL))


def test_the_launcher_names_the_killed_rank(tmp_path: Path) -> None:
    def train(folder):
        rank = dist.get_rank()
        model = minddp.OverlappedDDP(nn.Sequential(*(linear() for _ in range(4))))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        if rank == 1:
            die_half_way(model)
        train_one_step(model, optimizer, rank)
        Path(folder, str(rank)).touch()

    with pytest.raises(minddp.RankFailed, match="rank 1 was killed by SIGKILL") as caught:
        minddp.launch(train, str(tmp_path), world_size=3)
    assert (caught.value.rank, caught.value.signal) == (1, signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []
