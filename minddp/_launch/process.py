"""A rank's process: environment, input and output, and what it does when it crashes."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist


def take_over(settings: dict[str, Any], rank: int) -> None:
    """Have the caller's environment, and the pipe to the launcher as standard output."""
    os.environ.clear()
    os.environ.update(settings["env"], RANK=str(rank), LOCAL_RANK=str(rank))
    sys.argv[:] = settings["argv"]
    sys.dont_write_bytecode = settings["dont_write_bytecode"]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    die_with_parent()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  it stays open
    sys.stdout = line_stream(1)
    sys.stderr = line_stream(2)
    buffer_lines_of_c()
    torch.set_num_threads(settings["threads"])
    if "TORCH_DISTRIBUTED_DEBUG" in os.environ:  # torch has looked at it before the fork
        dist.set_debug_level_from_env()  # type: ignore[attr-defined]


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies, even while it is stuck in C."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def line_stream(descriptor: int) -> TextIO:
    """Whole lines leave at once, so that a crash loses none."""
    return open(descriptor, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)


def buffer_lines_of_c() -> None:
    """Let the lines of C's printf leave at once too."""
    with contextlib.suppress(Exception):
        libc = ctypes.CDLL(None)
        name = "__stdoutp" if sys.platform == "darwin" else "stdout"
        line_buffered = 1
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, name), None, line_buffered, 1024)


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).fflush(None)


def keep_crash_stack(path: Path) -> None:
    """Write the Python stack to `path` on a crash in C, and on SIGUSR1, even if stuck in C."""
    file = open(path, "w")  # noqa: SIM115  faulthandler needs it open
    faulthandler.enable(file)
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, file)
    keep_crash_stack.file = file  # type: ignore[attr-defined]  # must stay open
