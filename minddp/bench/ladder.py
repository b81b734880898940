"""Step times of the ladder against torch's own DDP.

Every contender has a copy of the model in the same processes, and they take turns step by step, so
that whatever else the machine does hits all of them alike. What counts is the median, over the
rounds, of (time of a contender's step) / (time of torch's step in the same round).
"""

from __future__ import annotations

import copy
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from minddp.bench.workloads import WORKLOADS
from minddp.ddp import DDP_BACKENDS, OverlappedDDP
from minddp.launcher import launch

CONTENDERS = ("c10d", "overlapped", "overlapped, views", "legacy", "flat", "naive", "local")


def wrap(name: str, model: nn.Module) -> nn.Module:
    """One contender's wrapper around a model; "local" communicates nothing."""
    if name == "local":
        return model
    if name == "overlapped, views":
        return OverlappedDDP(model, gradient_as_bucket_view=True)
    wrapped: nn.Module = DDP_BACKENDS[name](model)
    return wrapped


def step_times(
    workload: str, contenders: tuple[str, ...], rounds: int, warmup: int = 4
) -> dict[str, list[float]]:
    """To be run on each rank: seconds of each step, forward to optimizer, per contender.

    The time of a step is the slowest rank's."""
    build, batch = WORKLOADS[workload]
    model, inputs = build(), batch()
    runners = {}
    for name in contenders:
        wrapped = wrap(name, copy.deepcopy(model))
        runners[name] = (wrapped, torch.optim.SGD(wrapped.parameters(), lr=1e-4))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for round_number in range(warmup + rounds):
        order = order[1:] + order[:1]  # nobody is always the first after the pause
        for name in order:
            seconds = one_step(*runners[name], inputs)
            if round_number >= warmup:
                times[name].append(seconds)
    for name in contenders:
        slowest = torch.tensor(times[name], dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        times[name] = slowest.tolist()
    return times


def one_step(model: nn.Module, optimizer: Any, inputs: torch.Tensor) -> float:
    """Seconds of one training step, begun by all ranks together."""
    dist.barrier()
    begin = time.perf_counter()
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
    return time.perf_counter() - begin


def ratios(times: dict[str, list[float]], baseline: str = "c10d") -> dict[str, float]:
    """Median over the rounds of each contender's step time over the baseline's."""
    base = times[baseline]
    return {
        name: statistics.median(t / b for t, b in zip(values, base, strict=True))
        for name, values in times.items()
    }


def run(rounds: int = 60, world_size: int = 2) -> dict[str, dict[str, Any]]:
    """All workloads. Returns per workload: the ratios, and torch's median step in ms."""
    results = {}
    for workload in WORKLOADS:
        times = launch(
            step_times,
            workload,
            CONTENDERS,
            rounds,
            world_size=world_size,
            threads_per_rank=1,
            timeout=600,
        )[0]
        milliseconds = {n: statistics.median(values) * 1e3 for n, values in times.items()}
        results[workload] = {"ratios": ratios(times), "ms": milliseconds}
    return results


def report(results: dict[str, dict[str, Any]]) -> str:
    """The results as a table."""
    lines = ["step time / torch DDP's step time, median over the rounds (torch's own in ms)", ""]
    lines.append(f"{'':20}" + "".join(f"{name:>19}" for name in CONTENDERS))
    for workload, result in results.items():
        cells = [f"{result['ms']['c10d']:.1f} ms"]
        cells += [f"{result['ratios'][name]:.3f}" for name in CONTENDERS[1:]]
        lines.append(f"{workload:20}" + "".join(f"{cell:>19}" for cell in cells))
    return "\n".join(lines)
