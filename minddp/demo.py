"""The whole story in half a minute: one training, each kind of DDP, and what it costs.

Trains the same tiny GPT on the same batches in one process and then on some ranks under each rung
of the ladder and PyTorch's own DDP. The losses must agree; what differs is how the gradients
travel, and that is what the table and the picture show.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from minddp.ddp import DDP_BACKENDS
from minddp.demo_report import Run, as_text, draw, rows, save_numbers
from minddp.launcher import launch
from minddp.recorder import record
from minddp.train_config import TrainConfig
from minddp.trainer import Trainer

LADDER = ("naive", "flat", "legacy", "overlapped", "c10d")
# The model has 3 MiB of gradients, and the usual 25 MiB would put them all into one bucket.
BUCKET_MIB = 1
OPTIONS: dict[str, dict[str, Any]] = {
    "legacy": {"buffer_size": BUCKET_MIB * 2**20 // 4},  # in elements, of 4 bytes each
    "overlapped": {"bucket_cap_mb": BUCKET_MIB},
    "c10d": {"bucket_cap_mb": BUCKET_MIB},
}
LARGEST_DIFFERENCE = 1e-4


def measure(config: TrainConfig, options: dict[str, Any]) -> Run:
    """Train on this rank and time each step; then record one more step. Every rank calls it."""
    trainer = Trainer(config, ddp_options=options)
    step_seconds = []
    for _ in range(config.steps):
        start = time.perf_counter()
        trainer.train_step()
        step_seconds.append(time.perf_counter() - start)
    trainer.share_losses()
    losses, held_out_loss = list(trainer.losses), trainer.evaluate()
    if trainer.world_size > 1:
        dist.barrier()  # the ranks' lanes of the picture should start together
    with record(times="profiler") as recording:
        trainer.train_step()
    return Run(losses, held_out_loss, step_seconds, recording)


def run_all(config: TrainConfig, world_size: int) -> dict[str, list[Run]]:
    """Every training by name, each as a list with one Run per rank; "one process" comes first."""
    names = [name for name in LADDER if name in DDP_BACKENDS]
    runs = {}
    for name, ranks in [("one process", 1), *((name, world_size) for name in names)]:
        print(f"  {name} ...", flush=True)
        job = config if ranks == 1 else replace(config, ddp_backend=name)
        # One thread for each rank, in one process too: more ranks is then the only difference.
        runs[name] = list(
            launch(
                measure,
                job,
                OPTIONS.get(name, {}) if ranks > 1 else {},
                world_size=ranks,
                backend=None if ranks == 1 else "auto",  # one process needs no group
                threads_per_rank=1,
                timeout=600.0,
            )
        )
    return runs


def parse(argv: Sequence[str] | None) -> tuple[TrainConfig, int, Path]:
    """Settings, world size and output folder, or exit code 2 with what is wrong with them."""
    parser = argparse.ArgumentParser(
        prog="minddp demo", description="Train a tiny GPT under each kind of DDP and compare."
    )
    parser.add_argument("--steps", type=int, default=40, help="default: 40")
    parser.add_argument("--batch-size", type=int, default=16, help="global batch (default: 16)")
    parser.add_argument("--world-size", type=int, default=2, help="ranks (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder (default: out)")
    args = parser.parse_args(argv)
    try:
        config = TrainConfig(steps=args.steps, batch_size=args.batch_size, seed=args.seed)
        config.check_world_size(args.world_size)
        if args.steps < 2:
            raise ValueError(
                "--steps must be at least 2: torch's DDP settles its buckets in the 2nd"
            )
        if args.world_size < 2:
            raise ValueError("--world-size must be at least 2: the demo compares kinds of DDP")
    except (TypeError, ValueError) as error:
        parser.error(str(error))
    return config, args.world_size, args.out


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns 1 if a kind of DDP does not train as one process does."""
    config, world_size, out = parse(argv)
    out.mkdir(parents=True, exist_ok=True)
    print(
        f"A tiny GPT learns Python's reference manual: {config.steps} steps of "
        f"{config.batch_size} x {config.block_size} characters, "
        f"in one process and on {world_size} ranks"
    )
    start = time.perf_counter()
    runs = run_all(config, world_size)
    table = rows(runs)
    print(f"\n{as_text(table)}\n")
    save_numbers(table, {"config": asdict(config), "options": OPTIONS}, out / "demo.json")
    print(f"numbers:   {out / 'demo.json'}")
    draw(runs, out / "demo.png")
    print(f"timelines: {out / 'demo.png'}")
    print(f"in {time.perf_counter() - start:.0f} s")
    wrong = [row.name for row in table if not row.difference <= LARGEST_DIFFERENCE]
    if wrong:
        print(f"minddp demo: not the losses of one process: {', '.join(wrong)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    # By its full name, so that a launched rank can import `measure` instead of being sent its code.
    from minddp.demo import main as demo

    raise SystemExit(demo())
