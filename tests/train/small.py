"""A run so small that fifty steps take half a second, and the functions that ranks run in it."""

from __future__ import annotations

from typing import Any

from minddp.launcher import launch
from minddp.train import RunResult, run
from minddp.train_config import TrainConfig

# Seven rows divide neither by 2 nor by 4, nor do the 13 windows of the evaluation.
SMALL: dict[str, Any] = {
    "steps": 50,
    "batch_size": 7,
    "block_size": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 32,
    "eval_every": 25,
    "eval_windows": 13,
}
SMALL_FLAGS = [
    word for name, value in SMALL.items() for word in ("--" + name.replace("_", "-"), str(value))
]


def small(**settings: Any) -> TrainConfig:
    return TrainConfig(**{**SMALL, **settings})


def train_on(world_size: int, config: TrainConfig) -> list[RunResult]:
    """The results of all ranks; one process has no process group."""
    return launch(
        run,
        config,
        "none",
        world_size=world_size,
        backend=None if world_size == 1 else "gloo",
        threads_per_rank=1,
        prints="off",
    )


def largest_difference(a: list[float], b: list[float]) -> float:
    return max(abs(x - y) for x, y in zip(a, b, strict=True))
