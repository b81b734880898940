"""The rank's ends of the two pipes to the launcher."""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

MARK = "\x1e"  # in the output pipe: what follows, up to the end of the line, is a message
PIPE_ATOMIC = 3000  # bytes: shorter writes to a pipe are not mixed with those of others


class Channel:
    """Orders come in from the control pipe; messages go out between the lines of output.

    Messages share the pipe of stdout and stderr, and so keep their place among the lines. The
    pipe is held under a descriptor of its own: the function may redirect 1 and 2 as it likes.
    """

    def __init__(self, control: int) -> None:
        os.set_inheritable(control, False)
        self.control = control
        self.output = os.dup(1)
        self.may_leave = threading.Event()

    def orders(self) -> Iterator[str]:
        """One word a line, until the launcher closes its end or dies."""
        with open(self.control, "rb", buffering=0, closefd=False) as pipe:
            for line in pipe:
                yield line.decode().strip()

    def tell(self, kind: str, **message: Any) -> None:
        text = json.dumps({"kind": kind, "time": time.monotonic(), **message})
        os.write(self.output, f"{MARK}{text}\n".encode())

    def show_warning(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: str | None = None,
    ) -> None:
        """Stands in for `warnings.showwarning`: the launcher merges what all ranks say.

        The place is named only if it is a file: the names of notebook cells change each time.
        """
        if file is not None:
            file.write(warnings.formatwarning(message, category, filename, lineno, line))
            return
        place = f"{os.path.basename(filename)}:{lineno}: " if os.path.exists(filename) else ""
        text = f"{place}{category.__name__}: {message}"
        self.tell("warning", text=text[:PIPE_ATOMIC])
