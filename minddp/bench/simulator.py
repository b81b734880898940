"""How long the simulator takes: it has to keep up with a slider."""

from __future__ import annotations

import statistics
import time

from minddp.cost_model import Link
from minddp.simulator import STRATEGIES, simulate
from minddp.step_profile import load_profile

LINK = Link(20e-6, 1.5e9)


def run() -> dict[str, float]:
    """Seconds: one ResNet50 step over 1024 ranks, and 100 configurations over 4096."""
    profile = load_profile("resnet50")
    steps = []
    for _ in range(9):
        begin = time.perf_counter()
        simulate(profile, LINK, 1024)
        steps.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    for number in range(100):
        strategy = STRATEGIES[number % len(STRATEGIES)]
        simulate(profile, LINK, 4096, strategy, bucket_cap_mb=1 + number)
    return {"step": statistics.median(steps), "sweep": time.perf_counter() - begin}


def report(result: dict[str, float]) -> str:
    """The results in words."""
    return (
        f"simulator: a ResNet50 step over 1024 ranks {1e3 * result['step']:.1f} ms, "
        f"100 configurations over 4096 ranks {result['sweep']:.2f} s"
    )
