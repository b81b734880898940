"""How long a launch takes, against `torch.multiprocessing.spawn` doing the same in the same run."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as torch_processes

from minddp.launcher import launch


def one_all_reduce() -> float:
    """The work: one all-reduce of one number."""
    value = torch.ones(1)
    dist.all_reduce(value)
    return value.item()


def spawned(rank: int, rendezvous: str, world_size: int) -> None:
    """The same in a process that `torch.multiprocessing.spawn` started."""
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size
    )
    one_all_reduce()
    dist.destroy_process_group()


def first_launch() -> float:
    """Seconds of the first launch in a fresh Python that has torch and minddp loaded."""
    code = (
        "import time, minddp\n"
        "from minddp.bench.latency import one_all_reduce\n"
        "begin = time.perf_counter()\n"
        "minddp.launch(one_all_reduce)\n"
        "print(time.perf_counter() - begin)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def run(launches: int = 20, spawns: int = 3, world_size: int = 2) -> dict[str, float]:
    """Medians in seconds: "first", "launch", "spawn", and "ratio" = spawn / launch."""
    first = first_launch()
    launch(one_all_reduce, world_size=world_size)
    ours, theirs = [], []
    for number in range(launches):
        begin = time.perf_counter()
        launch(one_all_reduce, world_size=world_size)
        ours.append(time.perf_counter() - begin)
        if number % (launches // spawns) == 0:  # spread over the run
            theirs.append(_spawn(world_size))
    median, spawn = statistics.median(ours), statistics.median(theirs)
    return {"first": first, "launch": median, "spawn": spawn, "ratio": spawn / median}


def _spawn(world_size: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        torch_processes.spawn(  # type: ignore[attr-defined,no-untyped-call]
            spawned, (str(Path(folder) / "store"), world_size), nprocs=world_size
        )
        return time.perf_counter() - begin


def report(result: dict[str, float]) -> str:
    """The results in words."""
    return (
        f"launch of 2 ranks, one all-reduce: median {result['launch']:.3f} s "
        f"(torch.multiprocessing.spawn {result['spawn']:.2f} s, {result['ratio']:.0f} times as "
        f"long); the first launch of a process {result['first']:.2f} s"
    )
