"""Start ranks by forking a process that has torch loaded already: some milliseconds each.

One server serves all launches of a process. It ends when the process does, however that ends.
"""

from __future__ import annotations

import atexit
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

_lock = threading.Lock()
_server: Server | None = None


class Server:
    """The calling process' end of the fork server (child.py holds the other)."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.orders, theirs = socket.socketpair()
        self.errors = tempfile.TemporaryFile()
        # OpenBLAS would start threads when torch loads numpy, and threads do not survive a fork.
        env = {"OPENBLAS_NUM_THREADS": "1", **os.environ}
        script = str(Path(__file__).with_name("child.py"))
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, script, "server", str(theirs.fileno()), json.dumps(sys_path())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.errors,
                env=env,
                start_new_session=True,  # a Ctrl-C in the terminal is for the caller alone
            )

    def alive(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def fork(self, fds: list[int]) -> None:
        socket.send_fds(self.orders, [b"f"], fds)

    def complaint(self) -> str:
        """What the server wrote to stderr before it died."""
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")

    def close(self) -> None:
        self.orders.close()
        if self.owner == os.getpid():
            try:
                self.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.errors.close()


def sys_path() -> list[str]:
    return [os.fspath(entry) for entry in sys.path]


def server() -> Server:
    """The server of this process: started at the first launch, and again if it was killed.

    A forked copy of this process must not use its parent's, hence the check of the owner.
    """
    global _server
    if _server is None or not _server.alive():
        if _server is not None:
            _server.close()
        _server = Server()
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
        self._pending = b""
        self._status, their_status = socket.socketpair()
        control, self._control = os.pipe()
        output, their_output = os.pipe()
        self.stdin = open(self._control, "wb", buffering=0)
        self.stdout = open(output, "rb", buffering=0)
        theirs = [their_status.fileno(), control, their_output]
        try:
            self._send({"folder": folder})
            with _lock:
                self._server = server()
                self._server.fork(theirs)
        finally:
            their_status.close()
            os.close(control)
            os.close(their_output)
        self._status.setblocking(False)

    def _send(self, message: dict[str, Any]) -> None:
        self._status.sendall(json.dumps(message).encode() + b"\n")

    def poll(self) -> int | None:
        """The exit code, or None while the process lives."""
        while self.returncode is None:
            try:
                received = self._status.recv(65536)
            except BlockingIOError:
                break
            except OSError:
                received = b""
            if not received:
                self._lost()
                break
            self._pending += received
            *lines, self._pending = self._pending.split(b"\n")
            for line in lines:
                message = json.loads(line)
                self.pid = message.get("pid", self.pid)
                self.returncode = message.get("exitcode", self.returncode)
        return self.returncode

    def _lost(self) -> None:
        self.returncode = -signal.SIGKILL
        if not self._server.alive() and self.pid is None:
            raise RuntimeError(
                "the fork server, which starts the ranks, ended before it could start one:\n"
                + self._server.complaint()
            )

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            try:
                self._send({"signal": int(signum)})
            except OSError:
                pass  # it has just ended

    def kill(self) -> None:
        """End the rank and whatever it started."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        for end in (self._status, self.stdin, self.stdout):
            end.close()
