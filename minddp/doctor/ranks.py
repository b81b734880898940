"""The doctor's look at ranks: how processes start here, and whether two of them can talk."""

from __future__ import annotations

import multiprocessing
import time

import torch
import torch.distributed as dist

import minddp

from .finding import Finding


def check_start_method() -> Finding:
    """forkserver launches ranks in a tenth of a second, spawn in about two."""
    methods = multiprocessing.get_all_start_methods()
    if "forkserver" in methods:
        return Finding("start method", "ok", "forkserver")
    return Finding("start method", "ok", "spawn (this system has no forkserver: launches take 2 s)")


def check_launch() -> Finding:
    """Two real ranks start, add their ranks up with one all-reduce, and end. Twice: cold, warm."""

    def add_ranks() -> float:
        value = torch.tensor([float(dist.get_rank() + 1)])
        dist.all_reduce(value)
        return value.item()

    seconds = []
    for _ in range(2):
        start = time.monotonic()
        try:
            sums = list(minddp.launch(add_ranks, world_size=2, backend="gloo", timeout=60))
        except Exception as error:  # whatever stops a launch is the finding
            first_line = str(error).strip().splitlines()[0] if str(error).strip() else ""
            found = f"{type(error).__name__}: {first_line}"
            advice = "minddp.launch(print, 1, world_size=2) in a Python shell shows the whole error"
            return Finding("2-rank launch", "failure", found, advice)
        seconds.append(time.monotonic() - start)
        if sums != [3.0, 3.0]:
            found = f"1 + 2 came out as {sums} on the two ranks"
            return Finding("2-rank launch", "failure", found, "reinstall torch: gloo adds wrongly")
    return Finding("2-rank launch", "ok", f"first {seconds[0]:.2f} s, then {seconds[1]:.2f} s")
