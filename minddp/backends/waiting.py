"""Wait until every rank has left its word in a store, with a word of one's own when it takes long.

A store (a dictionary that all ranks see) is the one thing that still works when a collective would
hang, so it is where we find out who is missing.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping

from torch.distributed.distributed_c10d import Store

SECONDS_BEFORE_A_WARNING = 5.0
LONGEST_PAUSE = 0.05  # seconds between two looks into the store


def missing_after_wait(
    store: Store,
    keys: Mapping[int, str],
    timeout: float,
    describe: Callable[[list[int]], str],
) -> list[int]:
    """Wait for each rank's key, at most `timeout` seconds; the ranks whose key is still not there.

    Args:
        keys: by rank.
        describe: the warning to give once the wait gets long, from the ranks missing then.

    Raises:
        ConnectionError: the process that keeps the store is gone.
    """
    start, warned, pause = time.monotonic(), False, 0.001
    while True:
        # Not store.wait: a rank in it hears no Ctrl-C, and its time-outs are logged as faults.
        missing = [rank for rank, key in keys.items() if not has(store, key)]
        waited = time.monotonic() - start
        if not missing or waited >= timeout:
            return missing
        if waited >= SECONDS_BEFORE_A_WARNING and not warned:
            warned = True
            warnings.warn(
                f"{describe(missing)}; waiting up to {timeout:g} s", RuntimeWarning, stacklevel=4
            )
        time.sleep(min(pause, timeout - waited))
        pause = min(2 * pause, LONGEST_PAUSE)


def has(store: Store, key: str) -> bool:
    """Is the key there? Raises ConnectionError if the store is not."""
    try:
        return bool(store.check([key]))
    except RuntimeError as error:
        raise ConnectionError(
            "the store in which the ranks meet is gone: rank 0, or the launcher that kept it, "
            f"has ended ({error})"
        ) from error


def join_numbers(ranks: list[int]) -> str:
    """ "rank 1", "ranks 1, 2 and 3"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
