"""Check what `launch` was asked to do, before any process starts."""

from __future__ import annotations

import difflib
import inspect
import math
import operator
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from minddp._launch.environment import check_env, rank_environment

BACKENDS = ("auto", "gloo", "nccl")
START_METHODS = ("auto", "forkserver", "spawn")
PRINTS = ("ordered", "live", "off")


@dataclass(frozen=True)
class Plan:
    """A launch whose arguments are known to be good, and all choices made."""

    world_size: int
    backend: str | None
    timeout: float  # seconds
    start_method: str
    threads: int
    env: dict[str, str]  # the whole environment of the ranks, but for RANK and LOCAL_RANK
    prints: str
    seed: int | None
    record: bool


def make_plan(
    *,
    world_size: Any,
    backend: Any,
    timeout: Any,
    start_method: Any,
    threads_per_rank: Any,
    env: Any,
    prints: Any,
    seed: Any,
    record: Any,
) -> Plan:
    """Raise TypeError, ValueError or RuntimeError at once, or return the plan."""
    refuse_initialised_process()
    refuse_horovod()
    world_size = positive_int("world_size", world_size)
    if seed is not None:
        seed = integer("seed", seed)
    backend = choose_backend(backend, world_size)
    threads = choose_threads(threads_per_rank, world_size, {**os.environ, **check_env(env)})
    return Plan(
        world_size=world_size,
        backend=backend,
        timeout=check_timeout(timeout),
        start_method=choose_start_method(start_method),
        threads=threads,
        env=rank_environment(env, world_size, threads),
        prints=one_of("prints", prints, PRINTS),
        seed=seed,
        record=bool(record),
    )


def check_call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise TypeError if `fn` cannot be called like that."""
    if not callable(fn):
        raise TypeError(
            f"launch needs a function to run on each rank, got {fn!r} of type "
            f"{type(fn).__name__}. Pass the function itself, not its result: launch(f, x), "
            "not launch(f(x))."
        )
    if inspect.iscoroutinefunction(fn):
        raise TypeError(f"{fn.__name__} is an async function; launch needs an ordinary one.")
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some built-in functions have none
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(fn, "__name__", repr(fn))
        raise TypeError(
            f"{name}{signature} cannot be called with the arguments given to launch: {error}. "
            "The rank is not among them: ask torch.distributed.get_rank() inside the function."
        ) from None


def refuse_initialised_process() -> None:
    if dist.is_available() and dist.is_initialized():
        raise RuntimeError(
            "a process group is already initialised in this process (rank "
            f"{dist.get_rank()} of {dist.get_world_size()}), and launch starts processes with a "
            "group of their own. Call torch.distributed.destroy_process_group() first (or the "
            "backend's shutdown()), or initialise it inside the function that the ranks run."
        )


def refuse_horovod() -> None:
    horovod = sys.modules.get("horovod.torch")
    if horovod is not None and horovod.is_initialized():
        raise RuntimeError(
            "Horovod is initialised in this process, and launch starts processes of its own. "
            "Call horovod.torch.shutdown() first, or init() inside the function that they run."
        )


def integer(name: str, value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}.")
    try:
        return operator.index(value)
    except TypeError:
        kind = type(value).__name__
        raise TypeError(f"{name} must be an integer, got {value!r} of type {kind}.") from None


def positive_int(name: str, value: Any) -> int:
    number = integer(name, value)
    if number < 1:
        raise ValueError(f"{name} must be at least 1, got {number}.")
    return number


def check_timeout(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(
            f"timeout must be a number of seconds, got {value!r} of type {type(value).__name__}."
        )
    if math.isnan(value) or value <= 0:
        raise ValueError(f"timeout must be more than 0 seconds, got {value!r}.")
    return float(value)


def one_of(name: str, value: Any, options: tuple[str, ...]) -> str:
    if value in options:
        return str(value)
    listing = ", ".join(repr(option) for option in options)
    near = difflib.get_close_matches(str(value).lower(), options, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    kind = ValueError if isinstance(value, str) else TypeError
    raise kind(f"{name} must be one of {listing}, got {value!r}{hint}")


def choose_backend(backend: Any, world_size: int) -> str | None:
    """NCCL only where each rank has a GPU of its own; None means no process group."""
    if backend is None:
        return None
    if backend == "mps":
        raise ValueError("no backend connects MPS devices; backend='gloo' runs on the CPU.")
    choice = one_of("backend", backend, BACKENDS)
    # Counting devices makes no CUDA context; and ranks are no forks of this process anyway.
    gpus = torch.cuda.device_count() if choice != "gloo" else 0
    usable = gpus >= world_size and dist.is_nccl_available()
    if choice == "nccl" and not usable:
        raise ValueError(
            f"backend='nccl' needs one GPU for each rank: world_size is {world_size}, and there "
            f"{'is' if gpus == 1 else 'are'} {gpus} visible GPU{'s' if gpus != 1 else ''}"
            f"{'' if dist.is_nccl_available() else ' (this torch is built without NCCL)'}. "
            "Use backend='gloo', which runs on the CPU, or fewer ranks."
        )
    if choice == "auto":
        return "nccl" if usable else "gloo"
    return choice


def choose_start_method(start_method: Any) -> str:
    if start_method == "fork":
        raise ValueError(
            "start_method='fork' is not offered: a forked copy of this process hangs if it has "
            "used several threads before (one matmul is enough). 'forkserver' is as fast."
        )
    choice = one_of("start_method", start_method, START_METHODS)
    if sys.platform == "win32" and choice == "forkserver":
        raise ValueError("start_method='forkserver' does not exist on Windows; use 'spawn'.")
    if choice == "auto":
        return "spawn" if sys.platform == "win32" else "forkserver"
    return choice


def choose_threads(threads_per_rank: Any, world_size: int, env: Mapping[str, str]) -> int:
    """The cores are shared out, unless the caller or OMP_NUM_THREADS says otherwise."""
    if threads_per_rank is not None:
        return positive_int("threads_per_rank", threads_per_rank)
    if env.get("OMP_NUM_THREADS", "").isdigit():
        return max(1, int(env["OMP_NUM_THREADS"]))
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, cores // world_size)
