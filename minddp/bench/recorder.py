"""What recording costs: step time inside `record()` over step time without, in turns."""

from __future__ import annotations

import statistics
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn

from minddp.bench.ladder import one_step
from minddp.bench.workloads import WORKLOADS
from minddp.ddp import OverlappedDDP
from minddp.launcher import launch
from minddp.recorder import record


def recorded_over_plain(workload: str, rounds: int) -> float:
    """To be run on each rank: the median ratio."""
    build, batch = WORKLOADS[workload]
    model: nn.Module = OverlappedDDP(build())
    optimizer, inputs = torch.optim.SGD(model.parameters(), lr=1e-4), batch()
    quotients = []
    for _ in range(rounds):
        seconds = []
        for context in (nullcontext, record):
            with context():
                seconds.append(one_step(model, optimizer, inputs))
        quotients.append(seconds[1] / seconds[0])
    median = torch.tensor(statistics.median(quotients[2:]))
    dist.all_reduce(median, dist.ReduceOp.MAX)
    return median.item()


def run(rounds: int = 20) -> dict[str, float]:
    """The ratio per workload, on two ranks."""
    return {
        name: launch(recorded_over_plain, name, rounds, threads_per_rank=1, timeout=300)[0]
        for name in WORKLOADS
    }


def report(result: dict[str, float]) -> str:
    """The results as a line."""
    cells = ", ".join(f"{name} {ratio:.2f}" for name, ratio in result.items())
    return f"a step inside record() over one outside: {cells}"
