"""In a rank: what to say of the exception that ended its function."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

import torch.distributed as dist

LAUNCHER_FOLDER = str(Path(__file__).parent)

# What gloo and the stores say when a peer has gone: the echo of a failure, not its cause.
ECHO = re.compile(
    r"(closed|reset|aborted) by (remote )?peer|gloo/transport|broken pipe|socket (closed|timeout)"
    r"|pair closure|connection refused|NCCL communicator was aborted",
    re.IGNORECASE,
)


def failure_report(error: BaseException) -> dict[str, Any]:
    """One line, the traceback from the user's function on, the exit code; is it an echo?"""
    return {
        "summary": summary(error),
        "traceback": "".join(
            traceback.format_exception(type(error), error, users_part(error.__traceback__))
        ),
        "exitcode": exit_code(error),
        "echo": is_echo(error),
    }


def summary(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"called sys.exit({error.code!r}) before its function returned"
    first_line = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__


def exit_code(error: BaseException) -> int:
    """The exit code that Python gives a program that ends with `error`."""
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


def users_part(stack: TracebackType | None) -> TracebackType | None:
    """Without the frames of the launcher, which lead to the user's function; it may be all."""
    part = stack
    while part is not None and part.tb_frame.f_code.co_filename.startswith(LAUNCHER_FOLDER):
        part = part.tb_next
    return part


def is_echo(error: BaseException | None) -> bool:
    """Whether `error`, or what it was raised from, says that a connection to a peer broke."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, (dist.DistNetworkError, dist.DistStoreError)):
            return True
        if isinstance(error, (RuntimeError, OSError)) and ECHO.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False
