"""Many cases in one launch: a fresh process group for each, so that no case spoils the next."""

from __future__ import annotations

import gc
import os
import pickle
import traceback
import warnings
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist

from minddp.launcher import LaunchTimeout, RankFailed, launch

from .cases import CASES
from .record import Case, Outcome
from .rungs import Rung

GROUP_TIMEOUT = 20.0  # seconds until a collective that waits in vain gives up
DEATHS = 5  # after so many the rest of the batch is not tried, and charged with the last

Job = tuple[Rung, str]  # a class, and the name of a case to run on it


def jobs_of(rungs: Sequence[Rung]) -> list[tuple[Rung, Case]]:
    """Every case on every class to which it applies."""
    return [(rung, case) for rung in rungs for case in CASES if applies(case, rung)]


def applies(case: Case, rung: Rung) -> bool:
    # A case that compiles takes several steps by itself, and seconds: once per class is enough.
    return not (rung.traits & case.not_for.keys() or case.compiles and rung.practised)


def launch_of(rung: Rung, case: Case) -> str:
    """One launch per class; but the compiler takes long to start, so all its cases share one."""
    return "compiler" if case.compiles else rung.label


def run_batch(
    jobs: Sequence[tuple[Rung, Case]], world_size: int, group_timeout: float = GROUP_TIMEOUT
) -> list[list[Outcome]]:
    """For each job its outcomes, one per rank.

    A case that kills its rank, or hangs outside a collective, is charged with it, and the batch
    goes on behind it.
    """
    left: list[Job] = [(rung, case.name) for rung, case in jobs]
    outcomes: list[list[Outcome]] = []
    deaths = 0
    while left:
        with TemporaryDirectory() as folder:
            try:
                launch(
                    run_in_rank,
                    left,
                    folder,
                    group_timeout,
                    world_size=world_size,
                    backend=None,
                    timeout=120 + 4 * group_timeout,
                    prints="off",
                )
            except (RankFailed, LaunchTimeout) as error:
                death = Outcome(error=f"{type(error).__name__}: {error}", died=True)
                deaths += 1
            finished = read_outcomes(folder, len(left), world_size)
        outcomes += finished
        left = left[len(finished) :]
        charged = left if deaths > DEATHS else left[:1]
        outcomes += [[death] * world_size for _ in charged]
        left = left[len(charged) :]
    return outcomes


def read_outcomes(folder: str, jobs: int, world_size: int) -> list[list[Outcome]]:
    """The outcomes of the leading jobs that every rank finished."""
    outcomes = []
    for index in range(jobs):
        files = [Path(folder, f"{index}.{rank}") for rank in range(world_size)]
        if not all(file.exists() for file in files):
            break
        outcomes.append([pickle.loads(file.read_bytes()) for file in files])
    return outcomes


def run_in_rank(jobs: list[Job], folder: str, timeout: float) -> None:
    """All jobs one after the other, in this rank; each outcome goes into a file."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(f"{folder}/store", world_size)
    by_name = {case.name: case for case in CASES}
    gc.freeze()  # what was imported so far need not be searched after each case that failed
    for index, (rung, name) in enumerate(jobs):
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(f"group {index}", store),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout),
        )
        dist.barrier()  # every rank is in, so that one which fails at once is seen to fail
        outcome = run_case(by_name[name], rung, rank, world_size)
        # A rank that failed has left the group by now, which wakes the others; a rank that did
        # not fail must not leave before the others are through with their last collective.
        store.set(f"done {index}/{rank}", "")
        everyone = [f"done {index}/{peer}" for peer in range(world_size)]
        store.wait(everyone, timedelta(seconds=3 * timeout))
        write_outcome(Path(folder, f"{index}.{rank}"), outcome)
        if dist.is_initialized():
            dist.destroy_process_group()


def write_outcome(path: Path, outcome: Outcome) -> None:
    draft = path.with_suffix(path.suffix + ".draft")
    draft.write_bytes(pickle.dumps(outcome))
    draft.rename(path)


def run_case(case: Case, rung: Rung, rank: int, world_size: int) -> Outcome:
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            return Outcome(value=case.program(rung.wrap, rank, world_size))
    except Exception as error:
        outcome = Outcome(
            error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc()
        )
    # The group dies, and so wakes the other ranks, once the failed program's objects are gone.
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()
    return outcome
