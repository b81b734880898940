"""Run a function on several ranks: real processes, from a notebook cell or a script."""

from __future__ import annotations

import json
import os
import queue
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable

from minddp._launch import travel
from minddp._launch.forkserver import ForkedRank, sys_path


class RankFailed(RuntimeError):
    rank = 0


class LaunchTimeout(RuntimeError):
    pass


class Results(list):
    outputs: list[str]
    recordings: list[Any] | None = None


def launch(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int = 2,
    backend: str | None = "auto",
    timeout: float = 60.0,
    start_method: str = "auto",
    threads_per_rank: int | None = None,
    env: dict[str, str] | None = None,
    prints: str = "ordered",
    seed: int | None = 0,
    record: bool = False,
    **kwargs: Any,
) -> Results:
    folder = Path(tempfile.mkdtemp(prefix="minddp-"))
    ranks: list[ForkedRank] = []
    try:
        if backend == "auto":
            backend = "gloo"
        travel.save((fn, args, kwargs), folder / "job")
        environ = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1",
                   "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size),
                   "TORCH_FR_BUFFER_SIZE": "2000", **(env or {})}
        settings = dict(env=environ, cwd=os.getcwd(), argv=sys.argv,
                        threads=threads_per_rank or max(1, (os.cpu_count() or 1) // world_size),
                        backend=backend, world_size=world_size, group_timeout=2 * timeout + 60,
                        seed=seed, record=record)
        (folder / "settings.json").write_text(json.dumps(settings))
        inbox: queue.Queue[Any] = queue.Queue()
        outputs = [""] * world_size
        for k in range(world_size):
            r = ForkedRank(str(folder))
            ranks.append(r)
            r.stdin.write((json.dumps(dict(sys_path=sys_path(), folder=str(folder), rank=k,
                                           parent=os.getpid())) + "\n").encode())
        threads = [threading.Thread(target=_read, args=(k, r, inbox, outputs), daemon=True)
                   for k, r in enumerate(ranks)]
        for t in threads:
            t.start()
        waiting = set(range(world_size))
        deadline = time.monotonic() + timeout + 10
        failed = None
        while waiting and failed is None:
            if time.monotonic() > deadline:
                raise LaunchTimeout(f"no answer after {timeout} s")
            try:
                kind, k = inbox.get(timeout=0.02)
                if kind == "returned":
                    waiting.discard(k)
                if kind == "failed":
                    failed = k
            except queue.Empty:
                for k, r in enumerate(ranks):
                    if r.poll() is not None:
                        failed = k
        if failed is None:
            for r in ranks:
                r.stdin.write(b"leave\n")
        else:
            time.sleep(0.2)
        for r in ranks:
            if failed is not None:
                r.kill()
            while r.poll() is None:
                time.sleep(0.002)
        for t in threads:
            t.join()
        if prints != "off":
            text = "".join(f"[rank {k}] {line}\n" for k, o in enumerate(outputs)
                           for line in o.splitlines())
            sys.stdout.write(text)
            sys.stdout.flush()
        if failed is not None:
            path = folder / f"failure{failed}"
            text = path.read_text() if path.exists() else f"exit code {ranks[failed].returncode}"
            raise RankFailed(f"rank {failed} failed:\n{text}")
        pairs = [travel.load(folder / f"result{k}") for k in range(world_size)]
        results = Results(value for value, _ in pairs)
        results.outputs = outputs
        results.recordings = [r for _, r in pairs] if record else None
        return results
    finally:
        for r in ranks:
            r.kill()
            while r.poll() is None:
                time.sleep(0.002)
            r.close()
        shutil.rmtree(folder, ignore_errors=True)


def _read(k: int, rank: ForkedRank, inbox: Any, outputs: list[str]) -> None:
    for line in rank.stdout:
        text = line.decode(errors="replace")
        head, mark, message = text.partition("\x1e")
        outputs[k] += head
        if mark:
            inbox.put((json.loads(message)["kind"], k))
