"""Start ranks as fresh Python processes: slower (torch is loaded each time), but everywhere."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

from minddp._launch.forkserver import CHILD_PROGRAM


class SpawnedRank(subprocess.Popen[bytes]):
    """One rank, a child of the calling process and the leader of its own process group."""

    def __init__(self, env: dict[str, str]) -> None:
        super().__init__(
            [sys.executable, CHILD_PROGRAM, "rank"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,  # a Ctrl-C in the terminal is for the caller alone
        )

    def poll(self) -> int | None:
        """The exit code, or None while it lives; with it ends whatever it had started."""
        if self.returncode is None and super().poll() is not None:
            self._kill_group()
        return self.returncode

    def kill(self) -> None:
        """End the rank and whatever it started."""
        if self.returncode is None:
            self._kill_group()
            super().kill()

    def _kill_group(self) -> None:
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        for end in (self.stdin, self.stdout):
            if end is not None:
                with contextlib.suppress(OSError):
                    end.close()
