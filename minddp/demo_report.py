"""What the demo shows of its runs: a table, a picture of timelines, and the numbers as JSON."""

from __future__ import annotations

import json
import platform
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from minddp.recording import Recording
from minddp.timeline import Timeline

WARM_UP = 3  # steps left out of the times


@dataclass(frozen=True)
class Run:
    """What one rank saw of one training."""

    losses: list[float]
    held_out_loss: float
    step_seconds: list[float]
    recording: Recording


@dataclass(frozen=True)
class Row:
    """One line of the table. Times without the recorder; counts from one recorded step."""

    name: str
    world_size: int
    final_loss: float
    held_out_loss: float
    difference: float  # largest difference of a step's loss from that of one process
    ms_per_step: float  # median
    all_reduces: int  # in a step, on one rank
    mib: float  # in a step's all-reduces, on one rank
    overlap: float  # share of the communication time that lies beside computation


def rows(runs: dict[str, list[Run]]) -> list[Row]:
    """The table of some runs; "one process" must be among them."""
    reference = runs["one process"][0].losses
    return [_row(name, ranks, reference) for name, ranks in runs.items()]


def _row(name: str, ranks: list[Run], reference: list[float]) -> Row:
    root = ranks[0]
    calls = root.recording.collectives("all_reduce")
    timeline = Timeline.from_recordings([run.recording for run in ranks])
    return Row(
        name=name,
        world_size=len(ranks),
        final_loss=root.losses[-1],
        held_out_loss=root.held_out_loss,
        difference=max(abs(a - b) for a, b in zip(root.losses, reference, strict=True)),
        ms_per_step=1000 * statistics.median(root.step_seconds[WARM_UP:] or root.step_seconds),
        all_reduces=len(calls),
        mib=sum(call.nbytes for call in calls) / 2**20,
        overlap=timeline.overlap_fraction(0) if calls else 0.0,
    )


def as_text(table: list[Row]) -> str:
    """The table for a terminal."""
    lines = [
        f"{'':<12}{'final':>8}{'held-out':>10}{'differs from':>14}{'ms per':>9}"
        f"{'all-reduces':>13}{'MiB per':>9}{'overlapped':>12}",
        f"{'':<12}{'loss':>8}{'loss':>10}{'one process':>14}{'step':>9}"
        f"{'per step':>13}{'step':>9}{'':>12}",
    ]
    for row in table:
        alone = row.world_size == 1
        lines.append(
            f"{row.name:<12}{row.final_loss:>8.4f}{row.held_out_loss:>10.4f}"
            f"{'-' if alone else f'{row.difference:.1e}':>14}{row.ms_per_step:>9.1f}"
            f"{row.all_reduces:>13}{row.mib:>9.2f}"
            f"{'-' if alone else f'{row.overlap:.0%}':>12}"
        )
    return "\n".join(lines)


def draw(runs: dict[str, list[Run]], path: Path) -> None:
    """Save the timelines of one step under each kind of DDP, one below the other."""
    from minddp import lab  # brings matplotlib, which a rank does not need

    shown = {name: ranks for name, ranks in runs.items() if len(ranks) > 1}
    figure = lab.timeline({k: [run.recording for run in ranks] for k, ranks in shown.items()})
    figure.savefig(path, dpi=120)


def save_numbers(table: list[Row], settings: dict[str, Any], path: Path) -> None:
    """Write the table and the settings that it was measured with, as JSON."""
    numbers = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        **settings,
        "rows": [asdict(row) for row in table],
    }
    path.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
