"""Train a tiny GPT on Python's reference manual: alone, on ranks of our own, or under torchrun.

    python -m minddp.train                                    # one process
    python -m minddp.train --world-size 2                     # two ranks, launched from here
    torchrun --nproc-per-node 2 -m minddp.train               # the ranks that torchrun started

With the same settings all three walk through the same losses: the global batch of a step does not
depend on who computes it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from minddp.checkpoint import CheckpointError
from minddp.launcher import LaunchTimeout, RankFailed, launch
from minddp.progress import STYLES, show_progress
from minddp.rendezvous import group_from_environment, ranks_given
from minddp.train_config import (
    TrainConfig,
    add_train_args,
    check_positive,
    check_whole_number,
    config_from_args,
)
from minddp.trainer import Trainer


@dataclass(frozen=True)
class RunResult:
    """What a run came to; the same on every rank but for the times."""

    losses: list[float]  # global mean loss of each step, those before a resume included
    held_out_losses: dict[int, float]  # by number of steps
    tokens_per_second: float


def run(config: TrainConfig, progress: str = "auto", sample: int = 0) -> RunResult:
    """Train on this rank, from `config.checkpoint` if that file exists. Every rank calls it."""
    trainer = Trainer(config)
    resumed = bool(config.checkpoint) and trainer.resume(str(config.checkpoint))
    root = trainer.rank == 0
    if root and resumed:
        print(f"resumed from {config.checkpoint} after step {trainer.step}", flush=True)
    if root and trainer.step >= config.steps:
        print(f"nothing to do: --steps {config.steps} are trained already", flush=True)
    with show_progress(trainer, progress if root else "none") as on_step:
        trainer.fit(on_step)
    if root and sample:
        print(sample_text(trainer, sample), flush=True)
    return RunResult(trainer.losses, trainer.held_out_losses, trainer.tokens_per_second)


def sample_text(trainer: Trainer, count: int) -> str:
    """`count` characters that the model writes. Only one rank does this: `model`, not `ddp_model`.

    A call through the DDP class may communicate, and the other ranks would not take part.
    """
    generator = torch.Generator(trainer.device).manual_seed(trainer.config.seed)
    start = trainer.text.encode("\n")[None].to(trainer.device)
    return trainer.text.decode(trainer.model.generate(start, count, generator)[0])


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, TrainConfig]:
    """Arguments and settings, or exit code 2 with what is wrong with them."""
    parser = argparse.ArgumentParser(
        prog="python -m minddp.train", description="Train a tiny GPT on Python's reference manual."
    )
    add_train_args(parser)
    add = parser.add_argument
    add("--world-size", type=int, help="ranks to launch (default: 1, or the ranks of torchrun)")
    add("--timeout", type=float, default=86400.0, help="seconds until a launch is given up")
    add("--progress", choices=STYLES, default="auto")
    add("--sample", type=int, default=0, help="characters to let the trained model write")
    args = parser.parse_args(argv)
    try:
        given = ranks_given()
        if given and args.world_size not in (None, given):
            raise ValueError(
                f"--world-size {args.world_size} was asked for, but {given} ranks have been "
                "started already; leave --world-size out"
            )
        config = config_from_args(args)
        check_positive("--timeout", args.timeout)
        check_whole_number("--sample", args.sample, 0)
        args.launches = given is None and args.world_size not in (None, 1)
        config.check_world_size(given or (1 if args.world_size is None else args.world_size))
    except (TypeError, ValueError) as error:
        parser.error(str(error))
    return args, config


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns 0, or 1 when the training failed; exits with 2 for a bad value."""
    args, config = parse(argv)
    job = (config, args.progress, args.sample)
    try:
        if args.launches:
            launch(run, *job, world_size=args.world_size, timeout=args.timeout, prints="live")
        elif ranks_given() and not dist.is_initialized():
            with group_from_environment():
                run(*job)
        else:
            run(*job)
    except (CheckpointError, OSError, ValueError, RankFailed, LaunchTimeout) as error:
        print(f"minddp.train: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    # By its full name, so that a launched rank can import `run` instead of being sent its code.
    from minddp.train import main as train

    raise SystemExit(train())
