"""Learn when a collective is complete, whoever waits for it.

Most `Work` objects have a future that calls back. Those of send and recv have none: for them we
listen at `Work.wait`, for as long as somebody records.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed import distributed_c10d

Callback = Callable[[float], None]

_lock = threading.Lock()
_listeners: list[CompletionListener] = []
_Work: Any = distributed_c10d.Work
_original_wait = _Work.wait


class CompletionListener:
    """Calls back with the time (`time.monotonic`) at which each watched `Work` was complete."""

    def __init__(self) -> None:
        self._waited: dict[int, tuple[Any, Callback]] = {}
        self._futures: list[tuple[Any, threading.Event]] = []

    def watch(self, work: Any, callback: Callback) -> None:
        try:
            future = work.get_future()
        except RuntimeError:
            # The entry keeps this Python object alive: pybind11 then hands the very same one to
            # the caller, whose wait() can be recognised.
            self._waited[id(work)] = (work, callback)
            return
        called = threading.Event()

        def done(_: Any) -> None:
            callback(time.monotonic())
            called.set()

        self._futures.append((future, called))
        future.add_done_callback(done)

    def waited(self, work: Any) -> None:
        _, callback = self._waited.pop(id(work), (None, None))
        if callback is not None:
            callback(time.monotonic())

    def settle(self) -> None:
        """Let the callbacks of futures that are complete finish; wait for no other."""
        for future, called in self._futures:
            if future.done():
                called.wait(1.0)
        self._futures.clear()
        self._waited.clear()


@contextmanager
def listening(listener: CompletionListener) -> Iterator[None]:
    """Let `listener` hear every `Work.wait()` of this process, from any thread."""
    with _lock:
        _listeners.append(listener)
        _Work.wait = _heard_wait
    try:
        yield
    finally:
        with _lock:
            _listeners.remove(listener)
            if not _listeners:
                _Work.wait = _original_wait


def _heard_wait(work: Any, *args: Any, **kwargs: Any) -> Any:
    result = _original_wait(work, *args, **kwargs)
    for listener in tuple(_listeners):
        listener.waited(work)
    return result
