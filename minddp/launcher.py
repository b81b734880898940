"""Run a function on several ranks: real processes, from a notebook cell or a script.

    def work():
        x = torch.ones(3) * dist.get_rank()
        dist.all_reduce(x)
        return x

    minddp.launch(work, world_size=2)       # [tensor([1., 1., 1.]), tensor([1., 1., 1.])]

The story of a launch: check what is asked for; write the function into a file, by value; start
one process for each rank; watch them; stop them, always; show what they printed; collect what
they returned. The details of each step are in `minddp/_launch/`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minddp._launch import travel
from minddp._launch.checks import Plan, check_call, make_plan
from minddp._launch.crew import Crew
from minddp._launch.culprit import refuse_argument
from minddp._launch.errors import LaunchTimeout, RankFailed
from minddp._launch.failures import launch_timeout, rank_failed
from minddp._launch.trace import CollectiveCall
from minddp._launch.watch import watch

__all__ = ["CollectiveCall", "LaunchTimeout", "RankFailed", "Results", "launch"]

LONGEST_GROUP_TIMEOUT = 7 * 24 * 3600.0  # seconds; torch cannot take an infinite one


class Results(list[Any]):
    """What the ranks returned, by rank.

    `outputs` is what each rank printed, without the prefix; `recordings` is each rank's
    `minddp.recorder.Recording` after `launch(..., record=True)`, else None.
    """

    def __init__(self, values: list[Any], outputs: list[str], recordings: list[Any] | None) -> None:
        super().__init__(values)
        self.outputs = outputs
        self.recordings = recordings


def launch(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int = 2,
    backend: str | None = "auto",
    timeout: float = 60.0,
    start_method: str = "auto",
    threads_per_rank: int | None = None,
    env: dict[str, str] | None = None,
    prints: str = "ordered",
    seed: int | None = 0,
    record: bool = False,
    **kwargs: Any,
) -> Results:
    """Call `fn(*args, **kwargs)` in `world_size` processes that form a process group.

    The function does not get its rank as an argument: it asks `torch.distributed.get_rank()`.
    It may be defined anywhere, a notebook cell included; it takes along the values of the
    globals that it uses. Values and arguments are copies: tensors come back on the CPU, and a
    tensor that autograd computed comes back without its graph.

    Args:
        fn: any callable; with arguments of the same names as below, use `functools.partial`.
        world_size: the number of ranks.
        backend: "gloo" (CPU), "nccl" (a GPU for each rank), "auto" (NCCL if there are at least
            as many visible GPUs as ranks, else gloo), or None for no process group.
        timeout: seconds that the function may take on all ranks.
        start_method: "forkserver" (fast), "spawn" (everywhere), or "auto".
        threads_per_rank: of torch's operators; by default OMP_NUM_THREADS if that is set, else
            the cores are shared out.
        env: environment variables for the ranks, on top of those of this process.
        prints: "ordered" prints the ranks' output at the end in the order of the ranks, "live"
            as it comes, "off" leaves it in `results.outputs`. A line starts with "[rank 0] ";
            a warning is printed once, with the number of times that it was given.
        seed: torch, numpy and random are seeded with it, on every rank the same way; None
            leaves them as a fresh process has them.
        record: record each rank's collectives, see `minddp.recorder.record`.

    Returns:
        The values that the ranks returned, in the order of the ranks.

    Raises:
        TypeError, ValueError: an argument that cannot be right, or cannot be sent.
        RuntimeError: this process is part of a process group itself.
        RankFailed: a rank raised, ended without returning, or was killed.
        LaunchTimeout: no answer in time; it says what each rank waits for.

    However it ends, KeyboardInterrupt included, no process that it started is left, nor any
    that the ranks started, such as DataLoader workers.
    """
    check_call(fn, args, kwargs)
    plan = make_plan(
        world_size=world_size,
        backend=backend,
        timeout=timeout,
        start_method=start_method,
        threads_per_rank=threads_per_rank,
        env=env,
        prints=prints,
        seed=seed,
        record=record,
    )
    with tempfile.TemporaryDirectory(prefix="minddp-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        write_job(home, plan, fn, args, kwargs)
        with crew_at_work(home, plan) as crew:
            ending = watch(crew, plan.timeout)
            if ending == "returned":
                for rank in crew:
                    rank.dismiss()
        if ending == "failed":
            raise rank_failed(crew)
        if ending != "returned":
            raise launch_timeout(crew, ending, plan.timeout)
        return collect(home, crew)


def write_job(
    home: Path, plan: Plan, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Leave in `home` what a rank needs: the settings, and the function with its arguments."""
    settings = {
        "world_size": plan.world_size,
        "backend": plan.backend,
        "threads": plan.threads,
        "env": plan.env,
        "seed": plan.seed,
        "record": plan.record,
        "argv": sys.argv,
        "dont_write_bytecode": sys.dont_write_bytecode,
        # Longer than ours: ours can say who waits for what.
        "group_timeout": min(2 * plan.timeout + 60, LONGEST_GROUP_TIMEOUT),
    }
    (home / "settings.json").write_text(json.dumps(settings))
    try:
        travel.save((fn, args, kwargs), home / "job", outward=True)
    except Exception as error:
        raise refuse_argument(fn, args, kwargs, error) from error


@contextmanager
def crew_at_work(home: Path, plan: Plan) -> Iterator[Crew]:
    """The running ranks; on the way out they are stopped, and what they printed is shown."""
    crew = Crew(home, plan)
    try:
        crew.start()
        yield crew
    finally:
        try:
            crew.stop()
            crew.output.finish()
        finally:
            crew.close()


def collect(home: Path, crew: Crew) -> Results:
    """Read what the ranks returned."""
    values, recordings = [], []
    for rank in crew:
        value, recording = travel.load(home / f"result{rank.number}")
        values.append(value)
        recordings.append(recording)
    outputs = [crew.output.text(rank.number) for rank in crew]
    return Results(values, outputs, recordings if crew.plan.record else None)
