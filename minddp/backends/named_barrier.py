"""A barrier that knows who waits in which: through a store, without any collective."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from torch.distributed.distributed_c10d import Store

from minddp.backends.waiting import has, join_numbers, missing_after_wait

HERE = str(Path(__file__).parent)


class NamedBarrier:
    """The barriers of a set of ranks, one after the other.

    Each rank counts its barriers. In its k-th it writes the barrier's name under "k/rank" and waits
    for the others' k-th names. So ranks that meet in different barriers know it at once, and after
    a time-out it is plain who has not come, and where it was last.

    Args:
        store: shared by these ranks alone; use a PrefixStore.
        rank: this process.
        members: all ranks that take part.
    """

    def __init__(self, store: Store, rank: int, members: list[int]) -> None:
        self._store, self._rank, self._members = store, rank, members
        self._count = 0

    def wait(self, name: str, timeout: float) -> None:
        """Wait for the other ranks.

        Raises:
            RuntimeError: they are in barriers of other names; on all ranks.
            TimeoutError: some have not come.
            ConnectionError: the store is gone.
        """
        number, self._count = self._count, self._count + 1
        self._store.set(f"{number}/{self._rank}", json.dumps([name, calling_line()]))
        keys = {rank: f"{number}/{rank}" for rank in self._members}
        missing = missing_after_wait(
            self._store, keys, timeout, lambda ranks: self._report(number, ranks)
        )
        if missing:
            raise TimeoutError(f"{self._report(number, missing)}, after {timeout:g} s")
        names = [json.loads(self._store.get(key))[0] for key in keys.values()]
        if set(names) != {name}:
            raise RuntimeError(
                f"the ranks are in different barriers: {self._report(number, [])}. Every rank must "
                "go through the same ones: look for a barrier in a block that only some run"
            )
        if number:  # everybody is here, so nobody reads the names of the one before any more
            self._store.delete_key(f"{number - 1}/{self._rank}")

    def _report(self, number: int, missing: list[int]) -> str:
        """Who waits where, and who is missing since when."""
        waiting = [
            f"rank {rank} is in barrier {self._where(number, rank)}"
            for rank in self._members
            if rank not in missing
        ]
        absent = []
        for rank in missing:
            last = f"{number - 1}/{rank}"
            if has(self._store, f"left/{rank}"):
                absent.append(f"rank {rank} has shut down")
            elif number and has(self._store, last):
                absent.append(
                    f"rank {rank} has not come since barrier {self._where(number - 1, rank)}"
                )
        silent = [rank for rank in missing if not any(f"rank {rank} " in text for text in absent)]
        if silent:
            verb = "has" if len(silent) == 1 else "have"
            absent.append(f"{join_numbers(silent)} {verb} not come to any barrier yet")
        return ", ".join(waiting + absent)

    def _where(self, number: int, rank: int) -> str:
        name, line = json.loads(self._store.get(f"{number}/{rank}"))
        return f"{name!r} ({line})"

    def leave(self) -> None:
        """Tell the others that this rank will not come any more."""
        self._store.set(f"left/{self._rank}", "")


def calling_line() -> str:
    """File and line of the nearest caller outside this package."""
    frame = sys._getframe()
    while frame.f_back and frame.f_code.co_filename.startswith(HERE):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
