"""Checkpoints: written by the root alone, whole or not at all, read by the root for everybody.

Three rules make a checkpoint safe in a job of many processes.

1. One writer. Replicas are equal, so rank 0's copy is everybody's; more writers would only race.
2. The new file appears by a rename, which is atomic: a crash, a full disk or a kill in the middle
   of writing leaves the old checkpoint as it was.
3. Nobody decides alone. Whether reading or writing worked is told to every rank, so that all go
   on or all raise; a rank that raised alone would leave the others waiting in a collective.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")
FORMAT = "minddp checkpoint 1"


class CheckpointError(RuntimeError):
    """The file is no checkpoint of this program, or one of a run that differs from this one."""


def on_root(work: Callable[[], T]) -> T:
    """Call `work` on rank 0 alone; every rank returns its result, or raises its exception.

    A collective: all ranks must call it. Without a process group it just calls `work`.
    """
    if not dist.is_initialized():
        return work()
    outcome: list[Any] = [None, None]  # result, exception
    if dist.get_rank() == 0:
        try:
            outcome[0] = work()
        except Exception as error:
            outcome[1] = error
    dist.broadcast_object_list(outcome, src=0)
    result, failure = outcome
    if failure is not None:
        raise failure
    return result  # type: ignore[no-any-return]


def write_checkpoint(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write `state` to `path` on rank 0, atomically. A collective: every rank calls it.

    Raises on every rank, with rank 0's exception, when the file cannot be written.
    """
    on_root(lambda: _write_atomically(Path(path), {"format": FORMAT, **state}))


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Rank 0 reads `path` and hands the state to every rank; None where there is no file.

    Only rank 0's machine needs the file. Tensors arrive on the CPU. A collective.
    Raises CheckpointError on every rank for a file that is not a checkpoint of this program.
    """
    return on_root(lambda: _read(Path(path)))


def check_same_run(
    path: str | os.PathLike[str], written: dict[str, Any], ours: dict[str, Any]
) -> None:
    """Raise CheckpointError if the run that wrote `path` differs from ours, with both values."""
    differing = [name for name in ours if ours[name] != written.get(name)]
    if differing:
        raise CheckpointError(
            f"{path} was written by another run: "
            + ", ".join(f"{k} is {written.get(k)!r} there, {ours[k]!r} here" for k in differing)
            + "; give the same values, or another --checkpoint"
        )


def _write_atomically(path: Path, state: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder: a rename is atomic only within one file system.
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())  # the content must be on disk before the name points to it
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    way_out = "give another --checkpoint, or remove the file to start anew"
    try:
        # weights_only: tensors and plain containers, never code from the file.
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise  # it may not be read, and the error says why
    except Exception as error:
        cause = type(error).__name__
        message = f"{path} cannot be read as a checkpoint ({cause}); {way_out}"
        raise CheckpointError(message) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a '{FORMAT}' file; {way_out}")
    return state
