"""What happens in a rank, from the first line to the last."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
import types
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist

from minddp._launch import travel

RECORD_MARK = "\x1e"  # opens a line of the output pipe that is a message to the launcher


class Channel:
    """The rank's own end of the two pipes to the launcher.

    `output` is a private copy of descriptor 1, so that a function may redirect that as it
    likes; `control` brings one-word orders, and its end of file says that the launcher died.
    """

    def __init__(self, control: int, output: int) -> None:
        self.control = open(control, "rb", buffering=0, closefd=False)
        self.output = output
        self.may_leave = threading.Event()

    def tell(self, kind: str, **message: Any) -> None:
        line = json.dumps({"kind": kind, "time": time.monotonic(), **message})
        os.write(self.output, f"{RECORD_MARK}{line}\n".encode())

    def listen(self, folder: Path, rank: int) -> None:
        for order in self.control:
            if order == b"leave\n":
                self.may_leave.set()
        kill_own_group()


def kill_own_group() -> None:
    """The launcher is dead: end this rank and whatever it started."""
    if hasattr(os, "killpg"):
        os.killpg(os.getpgid(0), signal.SIGKILL)
    os._exit(1)


def main(folder: str, rank: int, control: int, parent: int) -> None:
    """Be rank `rank` of the launch whose files are in `folder`. Never returns."""
    home = Path(folder)
    with open(home / "settings.json") as file:
        settings = json.load(file)
    channel = enter(settings, rank, control, parent)
    threading.Thread(target=channel.listen, args=(home, rank), daemon=True).start()
    exitcode = work(home, rank, settings, channel)
    channel.may_leave.wait()
    flush()
    os._exit(exitcode)


def enter(settings: dict[str, Any], rank: int, control: int, parent: int) -> Channel:
    """Take over the caller's environment and folder, and the pipes as input and output."""
    os.environ.clear()
    os.environ.update(settings["env"])
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    os.chdir(settings["cwd"])
    sys.argv[:] = settings["argv"]
    if hasattr(os, "setsid") and os.getpgid(0) != os.getpid():
        os.setsid()  # its own group: a Ctrl-C is not for it, and one signal ends all of it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    die_with(parent)
    os.set_inheritable(control, False)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    output = os.dup(1)
    buffer_lines()
    torch.set_num_threads(settings["threads"])
    return Channel(control, output)


def die_with(parent: int) -> None:
    """Ask Linux to kill this process when its parent dies, even while it is stuck in C."""
    if sys.platform != "linux":
        return
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def buffer_lines() -> None:
    """Let whole lines leave at once, those of C's printf too: a crash loses no line then."""
    sys.stdin = sys.__stdin__ = open(0, closefd=False)
    sys.stdout = sys.__stdout__ = line_stream(1)
    sys.stderr = sys.__stderr__ = line_stream(2)
    with contextlib.suppress(Exception):
        libc = ctypes.CDLL(None)
        name = "__stdoutp" if sys.platform == "darwin" else "stdout"
        line_buffered = 1
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, name), None, line_buffered, 1024)


def line_stream(descriptor: int) -> TextIO:
    return open(descriptor, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).fflush(None)


def work(home: Path, rank: int, settings: dict[str, Any], channel: Channel) -> int:
    """Run the function, leave its result or its failure in a file, and tell the launcher."""
    try:
        fn, args, kwargs = travel.load(home / "job")
        sys.modules["__main__"] = types.ModuleType("__main__")
        join_group(home, rank, settings)
        seed_everything(settings["seed"])
        channel.tell("started")
        value, recording = call(fn, args, kwargs, settings["record"])
        travel.save((value, recording), home / f"result{rank}")
    except BaseException as error:
        exitcode = error.code if isinstance(error, SystemExit) else 1
        flush()
        channel.tell("failed")
        (home / f"failure{rank}").write_text(traceback.format_exc())
        return exitcode if isinstance(exitcode, int) else 1
    flush()
    channel.tell("returned")
    return 0


def join_group(home: Path, rank: int, settings: dict[str, Any]) -> None:
    if settings["backend"] is None:
        return
    world_size = settings["world_size"]
    if settings["backend"] == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        settings["backend"],
        store=dist.FileStore(str(home / "rendezvous"), world_size),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=settings["group_timeout"]),
    )
    # Nobody starts before all have arrived: a rank that fails at once would otherwise change
    # what its peers report.
    dist.barrier()


def seed_everything(seed: int | None) -> None:
    with contextlib.suppress(ImportError):
        import numpy

        numpy.random.seed(None if seed is None else seed % 2**32)
    if seed is not None:
        torch.manual_seed(seed)
        random.seed(seed)


def call(fn: Any, args: Any, kwargs: Any, record: bool) -> tuple[Any, Any]:
    if not record:
        return fn(*args, **kwargs), None
    from minddp.recorder import record as recorder

    with recorder() as recording:
        value = fn(*args, **kwargs)
    return value, recording
