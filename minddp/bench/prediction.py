"""Does the simulator foretell the step times of this machine?

First the ingredients are measured: latency and bandwidth of an all-reduce, and the step's profile,
on all ranks at once, so that they disturb each other as they do in training. From these alone the
step time of each strategy is simulated; then it is measured, in turns.

The model knows one wire and one compute lane. It does not know that gloo's threads want the same
cores as autograd: where ranks fill all cores, overlapping gains less than it foretells.
"""

from __future__ import annotations

import copy
import json
import os
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minddp.bench.ladder import one_step
from minddp.bench.workloads import WORKLOADS
from minddp.cost_model import Link
from minddp.ddp import FlatDDP, LegacyDDP, NaiveDDP, OverlappedDDP
from minddp.hosts import run_ranks, two_hosts, why_not
from minddp.launcher import launch
from minddp.profiling import profile_step
from minddp.simulator import STRATEGIES, simulate

WORKLOAD = "MLP, 14 M"
BUCKET_MB = 20.0
CALLS = (2**10, 2**22)  # elements of the small and the large all-reduce that are timed


def wrap(strategy: str, model: nn.Module) -> nn.Module:
    """The class that a strategy of the simulator stands for."""
    if strategy == "legacy":
        return LegacyDDP(model, buffer_size=int(BUCKET_MB * 2**20 / 4))
    if strategy == "overlapped":
        return OverlappedDDP(model, bucket_cap_mb=BUCKET_MB)
    return {"naive": NaiveDDP, "flat": FlatDDP}[strategy](model)


def measure_link(repeats: int = 7) -> Link:
    """Latency and bandwidth of this group's wire, from a small and a large ring all-reduce."""
    medians = []
    for numel in CALLS:
        buffer, times = torch.ones(numel), []
        for _ in range(repeats):
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(buffer)
            times.append(time.perf_counter() - begin)
            buffer.fill_(1.0)
        medians.append(statistics.median(times))
    ranks = dist.get_world_size()
    steps = 2 * (ranks - 1)
    per_byte = (medians[1] - medians[0]) / (4 * (CALLS[1] - CALLS[0]))
    return Link(medians[0] / steps, steps / ranks / per_byte)


def square(outputs: Tensor, _: Any) -> Tensor:
    """The loss of the benchmarks."""
    return outputs.square().mean()


def compare(rounds: int) -> dict[str, dict[str, float]]:
    """To be run on each rank: predicted and measured step seconds of each strategy."""
    build, batch = WORKLOADS[WORKLOAD]
    model, inputs = build(), batch()
    link = measure_link() if dist.get_world_size() > 1 else Link(0.0, 1e12)
    dist.barrier()
    profile = profile_step(model, (inputs, None), square, lambda p: torch.optim.SGD(p, lr=1e-4))
    runners = {}
    for strategy in STRATEGIES:
        wrapped = wrap(strategy, copy.deepcopy(model))
        runners[strategy] = (wrapped, torch.optim.SGD(wrapped.parameters(), lr=1e-4))
    times: dict[str, list[float]] = {strategy: [] for strategy in STRATEGIES}
    for _ in range(rounds + 2):
        for strategy, runner in runners.items():
            times[strategy].append(one_step(*runner, inputs))
    results = {}
    for strategy in STRATEGIES:
        timeline = simulate(profile, link, dist.get_world_size(), strategy, BUCKET_MB)
        measured = torch.tensor(statistics.median(times[strategy][2:]))
        dist.all_reduce(measured, dist.ReduceOp.MAX)
        results[strategy] = {"predicted": timeline.duration, "measured": measured.item()}
    return results


def run(rounds: int = 8) -> dict[str, Any]:
    """Results per place: 1, 2 and 4 ranks of this machine, and two hosts over 1 Gbit/s."""
    results: dict[str, Any] = {}
    for ranks in (1, 2, 4):
        results[f"{ranks} on this machine"] = launch(
            compare, rounds, world_size=ranks, threads_per_rank=1, timeout=600
        )[0]
    reason = why_not()
    if reason:
        results["skipped"] = reason
        return results
    with two_hosts("1gbit") as hosts:
        arguments = [sys.executable, "-m", "minddp.bench.prediction", str(rounds)]
        results["2 over 1 Gbit/s"] = json.loads(run_ranks(hosts, arguments, timeout=600)[0])
    return results


def error(result: dict[str, float]) -> float:
    """Relative error of a prediction, with its sign."""
    return result["predicted"] / result["measured"] - 1


def report(results: dict[str, Any]) -> str:
    """The results as a table, with the median error of each place."""
    lines = [f"predicted / measured step, {WORKLOAD}, in ms", f"{'':20}" + "".join(
        f"{strategy:>16}" for strategy in STRATEGIES) + f"{'median error':>16}"]  # fmt: skip
    for place, result in results.items():
        if place == "skipped":
            lines.append(f"two hosts: not measured: {result}")
            continue
        cells = [f"{1e3 * r['predicted']:.0f} / {1e3 * r['measured']:.0f}" for r in result.values()]
        median = statistics.median(abs(error(r)) for r in result.values())
        lines.append(f"{place:20}" + "".join(f"{c:>16}" for c in cells) + f"{median:>15.0%}")
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    figures = compare(int(sys.argv[1]))
    if int(os.environ["RANK"]) == 0:
        print(json.dumps(figures))
    dist.destroy_process_group()
