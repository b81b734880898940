"""What happens in a rank, from its first line to its last."""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import random
import signal
import sys
import threading
import types
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from minddp._launch import travel
from minddp._launch.channel import Channel
from minddp._launch.process import flush, keep_crash_stack, take_over
from minddp._launch.report import failure_report
from minddp._launch.trace import take_trace


def main(folder: str, rank: int, control: int) -> None:
    """Be rank `rank` of the launch whose files are in `folder`. Never returns."""
    home = Path(folder)
    settings = json.loads((home / "settings.json").read_text())
    take_over(settings, rank)
    channel = Channel(control)
    keep_crash_stack(home / f"stack{rank}")
    listener = threading.Thread(target=listen, args=(channel, home, rank, settings), daemon=True)
    listener.start()
    exitcode = work(home, rank, settings, channel)
    # Its peers may still need its connections, so a rank leaves when the launcher says so.
    channel.may_leave.wait()
    flush()
    os._exit(exitcode)


def listen(channel: Channel, home: Path, rank: int, settings: dict[str, Any]) -> None:
    """Follow the launcher's orders, in a thread, until it dies or the rank ends."""
    for order in channel.orders():
        if order == "leave":
            channel.may_leave.set()
        elif order == "trace":
            trace = take_trace(own_barrier=settings["backend"] is not None)
            (home / f"trace{rank}").write_text(json.dumps(trace))
            channel.tell("traced")
    # End of file: the launcher is dead. End this rank and whatever it started.
    if hasattr(os, "killpg"):
        os.killpg(os.getpgid(0), signal.SIGKILL)
    os._exit(1)


def work(home: Path, rank: int, settings: dict[str, Any], channel: Channel) -> int:
    """Run the function, leave what came of it in a file, tell the launcher; the exit code."""
    try:
        fn, args, kwargs = unpack_job(home)
        warnings.showwarning = channel.show_warning
        join_group(home, rank, settings)
        seed_everything(settings["seed"])
        channel.tell("started")
        outcome = call(fn, args, kwargs, settings["record"])
        save_result(outcome, home / f"result{rank}")
    except BaseException as error:
        report = failure_report(error)
        (home / f"failure{rank}").write_text(json.dumps(report))
        flush()
        channel.tell("failed")
        return int(report["exitcode"])
    flush()
    channel.tell("returned")
    return 0


def unpack_job(home: Path) -> Any:
    """The function and its arguments; the caller's `__main__` is here in name only.

    What stood there in a cell or a script is put there by name, so that plain pickle, which
    looks things up by name (`broadcast_object_list`, `torch.save`), finds it.
    """
    sys.modules["__main__"] = main_module = types.ModuleType("__main__")
    job, main_objects, sources = travel.load_all(home / "job")
    vars(main_module).update(main_objects)
    for name, lines in sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    return job


def join_group(home: Path, rank: int, settings: dict[str, Any]) -> None:
    backend, world_size = settings["backend"], settings["world_size"]
    if backend is None:
        return
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend,
        store=dist.FileStore(  # type: ignore[attr-defined]
            str(home / "rendezvous"), world_size
        ),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=settings["group_timeout"]),
    )
    # Nobody starts before all have arrived: the failure of a rank that fails at once would
    # otherwise look to its peers like a failed start.
    dist.barrier()


def seed_everything(seed: int | None) -> None:
    """Seed torch, numpy and random; with None, give each process numbers of its own."""
    if seed is not None:
        torch.manual_seed(seed)
        random.seed(seed)
    with contextlib.suppress(ImportError):
        import numpy

        numpy.random.seed(None if seed is None else seed % 2**32)


def call(fn: Any, args: Any, kwargs: Any, record: bool) -> tuple[Any, Any]:
    """The value of the function and, on request, the recording of its collectives."""
    with contextlib.ExitStack() as around:
        if os.environ.get("MINDDP_DEBUG", "0") not in ("", "0"):
            from minddp.debug import checked_collectives

            around.enter_context(checked_collectives())
        if not record:
            return fn(*args, **kwargs), None
        from minddp.recorder import record as recorder

        recording = around.enter_context(recorder())
        value = fn(*args, **kwargs)
    return value, recording


def save_result(outcome: tuple[Any, Any], path: Path) -> None:
    try:
        travel.save(outcome, path)
    except Exception:
        from minddp._launch.culprit import describe, pickling_error, type_name

        if pickling_error(outcome[0], outward=False) is None:
            raise  # no fault of the value: a full disk, for example
        reason = describe("result", outcome[0], outward=False)
        raise TypeError(
            f"the function returned a {type_name(outcome[0])} that cannot be sent back: {reason}"
        ) from None
