"""The ranks of one launch, as the launcher sees them: start, listen, ask, stop."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minddp._launch.channel import MARK
from minddp._launch.checks import Plan
from minddp._launch.forkserver import ForkedRank, sys_path
from minddp._launch.output import Output
from minddp._launch.spawn import SpawnedRank

POLL = 0.01  # seconds between two looks at the processes
STOP_LIMIT = 3.0  # seconds to wait for killed processes


class Rank:
    """What the launcher knows of one rank. Times are `time.monotonic`, None: not yet."""

    def __init__(self, number: int, folder: Path, plan: Plan) -> None:
        self.number = number
        self.folder = folder
        self.started: float | None = None
        self.returned: float | None = None
        self.failed: float | None = None
        self.died: float | None = None  # ended unasked: killed, crashed, or os._exit
        self.dismissed = False
        self.traces = 0
        env = {**plan.env, "RANK": str(number), "LOCAL_RANK": str(number)}
        self.process: ForkedRank | SpawnedRank = (
            SpawnedRank(env) if plan.start_method == "spawn" else ForkedRank(str(folder))
        )

    @property
    def running(self) -> bool:
        return self.returned is None and self.failed is None and self.died is None

    def order(self, line: str) -> None:
        """Write to the control pipe; a rank that has just ended does not read it."""
        pipe = self.process.stdin
        with contextlib.suppress(OSError):
            if pipe is not None:
                pipe.write(f"{line}\n".encode())
                pipe.flush()

    def note(self, message: dict[str, Any]) -> None:
        """Take in a message: "started", "returned", "failed" or "traced"."""
        if message["kind"] == "traced":
            self.traces += 1
        else:
            setattr(self, message["kind"], message["time"])

    def dismiss(self) -> None:
        """Let a rank that has reported leave."""
        self.dismissed = True
        self.order("leave")

    def look(self) -> None:
        """See whether the process has ended."""
        if self.process.poll() is not None and not self.dismissed and self.died is None:
            self.died = time.monotonic()

    def read_json(self, name: str) -> dict[str, Any]:
        """A file that the rank wrote for the launcher; empty if it wrote none."""
        path = self.folder / f"{name}{self.number}"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def crash_stack(self) -> str:
        """What faulthandler wrote: on a crash, or when asked by a signal."""
        path = self.folder / f"stack{self.number}"
        return path.read_text(errors="replace") if path.exists() else ""


class Crew:
    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder
        self.plan = plan
        self.output = Output(plan.world_size, plan.prints)
        self.inbox: queue.Queue[tuple[int, Any]] = queue.Queue()
        self.ranks: list[Rank] = []
        self.readers: list[threading.Thread] = []

    def __iter__(self) -> Iterator[Rank]:
        return iter(self.ranks)

    def start(self) -> None:
        hello = {"cwd": os.getcwd(), "sys_path": sys_path(), "folder": str(self.folder)}
        for number in range(self.plan.world_size):
            rank = Rank(number, self.folder, self.plan)
            self.ranks.append(rank)
            rank.order(json.dumps({**hello, "rank": number}))
            reader = threading.Thread(
                target=read_lines, args=(number, rank.process.stdout, self.inbox), daemon=True
            )
            self.readers.append(reader)
            reader.start()

    def pump(self, seconds: float = POLL) -> None:
        """Take in what arrives within `seconds`, at least what is here; look at the processes."""
        with contextlib.suppress(queue.Empty):
            self.take_in(*self.inbox.get(timeout=seconds))
            while True:
                self.take_in(*self.inbox.get_nowait())
        for rank in self.ranks:
            rank.look()

    def take_in(self, number: int, item: Any) -> None:
        if isinstance(item, str):
            self.output.add_line(number, item)
        elif item["kind"] == "warning":
            self.output.add_warning(number, item["text"])
        else:
            self.ranks[number].note(item)

    def ask_traces(self, ranks: list[Rank], seconds: float = 1.0) -> None:
        """Have ranks write down where they are; those stuck in C answer to a signal only."""
        before = {rank: rank.traces for rank in ranks}
        for rank in ranks:
            rank.order("trace")
        until = time.monotonic() + seconds

        def missing() -> list[Rank]:
            return [r for r in ranks if r.traces == before[r] and r.process.poll() is None]

        while missing() and time.monotonic() < until:
            self.pump()
        stuck = missing()
        for rank in stuck:
            if hasattr(signal, "SIGUSR1"):
                rank.process.send_signal(signal.SIGUSR1)
        if stuck:
            self.pump(0.3)

    def stop(self) -> None:
        """End all ranks and whatever they started, reap them, and read what they printed."""
        for rank in self.ranks:
            if not rank.dismissed:
                rank.dismissed = True
                rank.process.kill()
        if not self.wait_for_end(STOP_LIMIT):  # a rank may hang while it leaves
            for rank in self.ranks:
                rank.process.kill()
            self.wait_for_end(STOP_LIMIT)
        for reader in self.readers:
            reader.join(timeout=STOP_LIMIT)
        self.pump(0)

    def wait_for_end(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while any(rank.process.poll() is None for rank in self.ranks):
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
        return True

    def close(self) -> None:
        for rank in self.ranks:
            rank.process.close()


def read_lines(number: int, pipe: Any, inbox: queue.Queue[tuple[int, Any]]) -> None:
    """In a thread: put each whole line, and each message, of one rank into the inbox."""
    held = ""
    with contextlib.suppress(ValueError, OSError):  # the pipe was closed under our hands
        for line in pipe:
            held, mark, message = (held + line.decode(errors="replace")).partition(MARK)
            if mark:
                inbox.put((number, parse(message)))
            else:
                inbox.put((number, held))
                held = ""
    if held:
        inbox.put((number, held))


def parse(message: str) -> Any:
    """The message as a dict, or the text itself if it is the user's own control character."""
    with contextlib.suppress(ValueError):
        parsed = json.loads(message)
        if isinstance(parsed, dict) and "kind" in parsed:
            return parsed
    return message
