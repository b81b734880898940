"""The program that every child process starts with. It is run as a script, by its path.

    python child.py rank                  be one rank (start method "spawn")
    python child.py server 5 '["", ...]'  be the fork server: orders come from socket 5

The fork server imports torch once and then forks a rank in some milliseconds. It imports
neither minddp nor anything of the caller's: what is imported before the fork would be stale
after an edit. So this file uses the standard library alone until a process knows its rank.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import traceback
import types
from typing import Any

PRELOAD = ("torch", "torch.distributed", "cloudpickle")
# Optimizers and torch's DDP need this one, which takes as long to load as all the rest. It is
# loaded when the first launch is over, for the sake of those who wait for that one.
LOAD_WHEN_IDLE = "torch._dynamo"
CHECK_PARENT_EVERY = 2.0  # seconds


def become_rank(control: int) -> None:
    """Read from `control` who we are, and be it. Never returns.

    The first line is `{"cwd": ..., "sys_path": [...], "folder": ..., "rank": ...}`. With the
    caller's `sys.path` the rank imports the same minddp, and the same helpers, as the caller.
    """
    with open(control, "rb", buffering=0, closefd=False) as pipe:
        orders = json.loads(pipe.readline())
    os.chdir(orders["cwd"])
    sys.path[:] = orders["sys_path"]
    importlib.invalidate_caches()
    load_rank_module().main(orders["folder"], orders["rank"], control)


def load_rank_module() -> types.ModuleType:
    """Import minddp._launch.rank, but not the rest of minddp, which it does not need.

    To import a module of a package runs the package's `__init__.py` first; here that would take
    longer than all else that a rank does before its function. So an empty package stands in for
    it meanwhile. A function that uses minddp imports it then, in the ordinary way.
    """
    stand_in = types.ModuleType("minddp")
    stand_in.__path__ = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    sys.modules["minddp"] = stand_in
    rank_module = importlib.import_module("minddp._launch.rank")
    del sys.modules["minddp"]
    return rank_module


class Forked:
    """One rank as its server sees it: the process, the socket to the caller, its files."""

    def __init__(self, pid: int, caller: socket.socket) -> None:
        self.pid = pid
        self.caller = caller
        self.folder = ""

    def signal(self, signum: int) -> None:
        """Signal the rank; SIGKILL goes to all that it started, such as DataLoader workers."""
        send = os.killpg if signum == signal.SIGKILL else os.kill
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(self.pid, signum)

    def tell_caller(self, **message: Any) -> None:
        with contextlib.suppress(OSError):  # it may be gone
            self.caller.send(json.dumps(message).encode() + b"\n")


class ForkServer:
    def __init__(self, orders: socket.socket) -> None:
        self.orders = orders
        self.parent = os.getppid()
        self.ranks: dict[int, Forked] = {}
        # The end of a child writes a byte into this pair, so that select() wakes up.
        self.wakeup, self.wakeup_end = socket.socketpair()
        self.wakeup.setblocking(False)
        self.wakeup_end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wakeup_end.fileno(), warn_on_full_buffer=False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.wakeup, selectors.EVENT_READ, self.drain_wakeup)
        self.selector.register(orders, selectors.EVENT_READ, self.fork)
        self.serving = True
        self.served = False

    def serve(self) -> None:
        """Fork on request until the caller closes its end or dies; then leave nothing behind."""
        while self.serving and os.getppid() == self.parent:
            for key, _ in self.selector.select(timeout=CHECK_PARENT_EVERY):
                key.data()
            self.reap()
            if self.served and not self.ranks and LOAD_WHEN_IDLE not in sys.modules:
                importlib.import_module(LOAD_WHEN_IDLE)
                gc.freeze()
        for rank in self.ranks.values():
            rank.signal(signal.SIGKILL)
        for rank in self.ranks.values():
            shutil.rmtree(rank.folder, ignore_errors=True)

    def fork(self) -> None:
        """Fork one rank for each message of one byte and three descriptors."""
        byte, fds, _, _ = socket.recv_fds(self.orders, 1, 3)
        if not byte:
            self.serving = False
            return
        pid = os.fork()
        if pid == 0:
            try:
                self.be_child(*fds)
            finally:  # whatever went wrong, the copy of the server must not go on serving
                traceback.print_exc()
                os._exit(1)
        lead_own_group(pid)
        status, control, output = fds
        os.close(control)
        os.close(output)
        caller = socket.socket(fileno=status)
        caller.setblocking(False)
        rank = self.ranks[pid] = Forked(pid, caller)
        self.served = True
        rank.tell_caller(pid=pid)
        self.selector.register(caller, selectors.EVENT_READ, lambda: self.obey(rank))

    def be_child(self, status: int, control: int, output: int) -> None:
        lead_own_group(0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.selector.close()
        for server_end in (self.orders, self.wakeup, self.wakeup_end):
            server_end.close()
        for sibling in self.ranks.values():
            sibling.caller.close()
        os.close(status)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        become_rank(control)

    def obey(self, rank: Forked) -> None:
        """Do to one rank what the caller asks; when the caller has closed its end, kill it."""
        try:
            orders = rank.caller.recv(65536)
        except OSError:
            orders = b""
        if not orders:
            rank.signal(signal.SIGKILL)
            self.selector.unregister(rank.caller)
            return
        for line in orders.splitlines():
            order = json.loads(line)
            rank.folder = order.get("folder", rank.folder)
            if "signal" in order:
                rank.signal(order["signal"])

    def reap(self) -> None:
        """Report the ranks that have ended, and end what they had started."""
        with contextlib.suppress(ChildProcessError):  # there is none left
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid in self.ranks:
                    self.part_with(self.ranks.pop(pid), os.waitstatus_to_exitcode(status))

    def part_with(self, rank: Forked, exitcode: int) -> None:
        rank.signal(signal.SIGKILL)
        rank.tell_caller(exitcode=exitcode)
        with contextlib.suppress(KeyError):
            self.selector.unregister(rank.caller)
        rank.caller.close()

    def drain_wakeup(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.wakeup.recv(4096)


def lead_own_group(pid: int) -> None:
    """Put a rank into a process group of its own, so that one signal ends all it started.

    Server and rank both do this, because neither knows which of them comes first.
    """
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)


def adopt_orphans() -> None:
    """Ask Linux to hand over what a rank leaves behind, so that reap() sees the end of it."""
    if sys.platform == "linux":
        PR_SET_CHILD_SUBREAPER = 36
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def main() -> None:
    sys.path.pop(0)  # this folder: its files must not hide modules of the same name
    if sys.argv[1] == "rank":
        become_rank(os.dup(0))
        return
    sys.path[:] = json.loads(sys.argv[3])
    for name in PRELOAD:
        importlib.import_module(name)
    gc.freeze()  # the collector would touch, and so copy, every page that the ranks share
    adopt_orphans()
    ForkServer(socket.socket(fileno=int(sys.argv[2]))).serve()


if __name__ == "__main__":
    main()
