"""What a training run is told: its settings, their flags, and what is wrong with a bad value."""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from minddp.ddp import DDP_BACKENDS
from minddp.ddp_choice import ddp_class
from minddp.gpt import GPTConfig
from minddp.text import CharText

HELP = {
    "steps": "optimizer steps in all, those of a checkpoint included",
    "batch_size": "rows of the global batch, all ranks together",
    "seed": "decides the first weights and every batch",
    "lr": "learning rate of AdamW",
    "clip": "largest norm of the gradient",
    "ddp_backend": f"how gradients are averaged: {', '.join(DDP_BACKENDS)}",
    "checkpoint": "file to resume from if it is there, and to write",
    "block_size": "characters in a row",
    "n_layer": "transformer layers",
    "n_head": "attention heads in a layer",
    "n_embd": "width: numbers per character",
    "log_every": "steps between two reports",
    "eval_every": "steps between two evaluations on the held-out text",
    "eval_windows": "windows of block_size held-out characters in an evaluation",
    "save_every": "steps between two checkpoints",
}


@dataclass(frozen=True)
class TrainConfig:
    """The settings of a run; every rank has the same. Raises TypeError or ValueError at once."""

    steps: int = 200
    batch_size: int = 16
    seed: int = 0
    lr: float = 1e-3
    clip: float = 1.0
    ddp_backend: str = "overlapped"
    checkpoint: str | None = None
    block_size: int = 64
    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 128
    log_every: int = 10
    eval_every: int = 100
    eval_windows: int = 64
    save_every: int = 100

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int":
                smallest = 0 if field.name == "seed" else 1
                check_whole_number(_flag(field.name), value, smallest)
        for name in ("lr", "clip"):
            check_positive(_flag(name), getattr(self, name))
        ddp_class(self.ddp_backend)
        if self.n_embd % self.n_head:
            raise ValueError(
                f"--n-embd {self.n_embd} cannot be shared equally by --n-head {self.n_head} heads; "
                "choose a multiple"
            )

    def check_world_size(self, world_size: int) -> None:
        """Raise ValueError if `world_size` ranks cannot have a row each."""
        check_whole_number("--world-size", world_size, 1)
        if self.batch_size < world_size:
            raise ValueError(
                f"--batch-size {self.batch_size} is the global batch, and {world_size} ranks share "
                f"it: each needs a row. Take at least {world_size} rows, or fewer ranks"
            )

    def check_text(self, text: CharText) -> None:
        """Raise ValueError if a row is longer than a part of the text."""
        shortest = min(len(text.train), len(text.held_out))
        if shortest <= self.block_size:
            raise ValueError(
                f"--block-size {self.block_size} needs {self.block_size + 1} characters in a row, "
                f"but a part of the text has only {shortest}"
            )

    def identity(self) -> dict[str, Any]:
        """The settings that decide what is learnt, not how, how long or where it is written."""
        free = ("steps", "ddp_backend", "checkpoint", "log_every", "eval_every", "save_every")
        return {k: v for k, v in asdict(self).items() if k not in free}

    def gpt(self, vocab_size: int) -> GPTConfig:
        """The shape of the model."""
        return GPTConfig(vocab_size, self.block_size, self.n_layer, self.n_head, self.n_embd)


def add_train_args(parser: argparse.ArgumentParser) -> None:
    """One flag for each setting of TrainConfig, with the same default."""
    kinds = {"int": int, "float": float, "str": str, "str | None": str}
    for field in fields(TrainConfig):
        default = "" if field.default is None else f" (default: {field.default})"
        parser.add_argument(
            _flag(field.name),
            type=kinds[str(field.type)],
            default=field.default,
            help=HELP[field.name] + default,
        )


def config_from_args(args: argparse.Namespace) -> TrainConfig:
    """The settings in parsed arguments. Raises what TrainConfig raises."""
    return TrainConfig(**{field.name: getattr(args, field.name) for field in fields(TrainConfig)})


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def check_whole_number(flag: str, value: object, smallest: int) -> None:
    """Raise TypeError or ValueError unless `value` is a whole number of at least `smallest`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{flag} must be a whole number, got {value!r}")
    if value < smallest:
        raise ValueError(f"{flag} must be at least {smallest}, got {value}")


def check_positive(flag: str, value: object) -> None:
    """Raise TypeError or ValueError unless `value` is a positive finite number."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"{flag} must be a number, got {value!r}")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{flag} must be a positive finite number, got {value}")
