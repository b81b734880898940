"""Start ranks by forking a process that has torch loaded already: some milliseconds each.

One server serves all launches of a process. It ends when the process does, however that ends.
It is our own, and not multiprocessing's, which runs the caller's `__main__` again in each
child and shares one list of preloaded modules with everybody else.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

CHILD_PROGRAM = str(Path(__file__).with_name("child.py"))


def sys_path() -> list[str]:
    return [os.fspath(entry) for entry in sys.path]


class Server:
    """The calling process' end of the fork server; child.py is the other end."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.orders, theirs = socket.socketpair()
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the server
        # OpenBLAS would start threads when torch loads numpy, and threads do not survive a fork.
        env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, CHILD_PROGRAM, "server", str(theirs.fileno())]
                + [json.dumps(sys_path())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.errors,
                env=env,
                start_new_session=True,  # a Ctrl-C in the terminal is for the caller alone
            )

    def alive(self) -> bool:
        """A forked copy of the calling process must not use the server of its parent."""
        return self.owner == os.getpid() and self.process.poll() is None

    def complaint(self) -> str:
        """What the server wrote to stderr before it died."""
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")

    def close(self) -> None:
        self.orders.close()
        self.errors.close()
        if self.owner == os.getpid():
            self.process.kill()
            self.process.wait()


_lock = threading.Lock()
_server: Server | None = None


def send_to_server(fds: list[int]) -> Server:
    """Have one rank forked; the server is started at the first launch, or if it was killed."""
    global _server
    with _lock:
        if _server is None or not _server.alive():
            if _server is not None:
                _server.close()
            _server = Server()
        socket.send_fds(_server.orders, [b"f"], fds)
        return _server


def stop() -> None:
    """End the server of this process, if there is one; the next launch starts another."""
    global _server
    with _lock:
        if _server is not None:
            _server.close()
            _server = None


atexit.register(stop)


class ForkedRank:
    """One rank behind the fork server, with the face of a `subprocess.Popen`."""

    def __init__(self, folder: str) -> None:
        self.returncode: int | None = None
        self.pid: int | None = None
        self._received = b""
        self._status, their_status = socket.socketpair()
        control, control_end = os.pipe()
        output, output_end = os.pipe()
        self.stdin = open(control_end, "wb", buffering=0)  # noqa: SIM115
        self.stdout = open(output, "rb")  # noqa: SIM115
        try:
            self._send(folder=folder)
            self._server = send_to_server([their_status.fileno(), control, output_end])
        except BaseException:
            self.close()
            raise
        finally:
            their_status.close()
            os.close(control)
            os.close(output_end)
        self._status.setblocking(False)

    def _send(self, **message: Any) -> None:
        with contextlib.suppress(OSError):  # it may just have ended
            self._status.sendall(json.dumps(message).encode() + b"\n")

    def poll(self) -> int | None:
        """The exit code (negative: the signal that ended it), or None while it lives."""
        while self.returncode is None:
            try:
                received = self._status.recv(65536)
            except BlockingIOError:
                break
            except OSError:
                received = b""
            if not received:
                self._server_is_gone()
                break
            *lines, self._received = (self._received + received).split(b"\n")
            for line in lines:
                message = json.loads(line)
                self.pid = message.get("pid", self.pid)
                self.returncode = message.get("exitcode", self.returncode)
        return self.returncode

    def _server_is_gone(self) -> None:
        self.returncode = -signal.SIGKILL  # the ranks of a server die with it
        if self.pid is None:
            raise RuntimeError(
                "the fork server, which starts the ranks, ended before it could start one; "
                'launch(..., start_method="spawn") does without it. Its last words:\n'
                + self._server.complaint()
            )

    def send_signal(self, signum: int) -> None:
        self._send(signal=int(signum))

    def kill(self) -> None:
        """End the rank and whatever it started."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        for end in (self._status, self.stdin, self.stdout):
            end.close()
