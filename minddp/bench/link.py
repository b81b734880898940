"""Step times over a real network of known speed: two hosts, a rank on each.

No way to average can be faster than max(computing alone, bytes on the wire / bandwidth): that is
the bound. Each step's time is shown over it; 1.00 is perfect overlap.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from typing import Any

import torch
import torch.distributed as dist

from minddp.bench.ladder import CONTENDERS, step_times
from minddp.bench.workloads import WORKLOADS
from minddp.hosts import run_ranks, two_hosts, why_not

WORKLOAD = "MLP, 14 M"
BITS_PER_SECOND = 1e9


def run(rounds: int = 8) -> dict[str, Any]:
    """Median step seconds per contender over a link of 1 Gbit/s, and the bound; or the reason why
    this machine cannot measure it, under "skipped"."""
    reason = why_not()
    if reason:
        return {"skipped": reason}
    with two_hosts("1gbit") as hosts:
        arguments = [sys.executable, "-m", "minddp.bench.link", str(rounds)]
        output = run_ranks(hosts, arguments, timeout=600)[0]
    seconds: dict[str, float] = json.loads(output)
    parameters = sum(p.numel() for p in WORKLOADS[WORKLOAD][0]().parameters())
    # Two ranks: a ring all-reduce sends 2 (n - 1) / n = 1 times the tensor in each direction.
    wire = parameters * 4 * 8 / BITS_PER_SECOND
    return {"seconds": seconds, "wire": wire, "bound": max(wire, seconds["local"])}


def be_a_rank(rounds: int) -> None:
    """What runs on each host."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    times = step_times(WORKLOAD, CONTENDERS, rounds, warmup=2)
    if int(os.environ["RANK"]) == 0:
        print(json.dumps({name: statistics.median(values) for name, values in times.items()}))
    dist.destroy_process_group()


def report(result: dict[str, Any]) -> str:
    """The results as a table."""
    if "skipped" in result:
        return f"over a link of 1 Gbit/s: not measured: {result['skipped']}"
    bound = result["bound"]
    lines = [
        f"{WORKLOAD} over two hosts and a link of 1 Gbit/s: the wire needs {result['wire']:.3f} s, "
        f"computing {result['seconds']['local']:.3f} s",
        f"{'':20}{'step':>10}{'over the bound':>16}",
    ]
    for name, seconds in result["seconds"].items():
        lines.append(f"{name:20}{seconds:>8.3f} s{seconds / bound:>16.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    be_a_rank(int(sys.argv[1]))
