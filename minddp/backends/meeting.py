"""How the ranks find each other: a store at MASTER_ADDR:MASTER_PORT, with every wait bounded."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import warnings
from dataclasses import asdict
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore, Store

from minddp.backends.communication import Card
from minddp.backends.environment import Place
from minddp.backends.waiting import (
    SECONDS_BEFORE_A_WARNING,
    join_numbers,
    missing_after_wait,
)

# The stores that this process has opened, by address, with the number of meetings in each. A store
# stays open when the group is gone, for another may follow: rank 0 could not open its port again
# while others still talk to the old store.
_stores: dict[tuple[str, int], Store] = {}
_meetings: dict[tuple[str, int], int] = {}


def open_store(place: Place, timeout: float) -> Store:
    """A fresh part of the store at the place's address, which rank 0 or a launcher keeps.

    Raises:
        OSError: the port is in use, or nobody answers at the address.
    """
    where = (place.address, place.port)
    if where not in _stores:
        lent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        _stores[where] = _open(place, timeout, keep=place.rank == 0 and not lent)
    _stores[where].set_timeout(timedelta(seconds=timeout))
    _meetings[where] = _meetings.get(where, 0) + 1
    # torchrun's own store outlives the ranks: what those of an earlier attempt wrote is no use.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if _alone_on_host(place) else "0"
    prefix = f"minddp attempt {attempt} meeting {_meetings[where]}"
    return PrefixStore(prefix, _stores[where])


def _alone_on_host(place: Place) -> bool:
    """Are all ranks on this host? Only then do they count torchrun's attempts alike."""
    return os.environ.get("LOCAL_WORLD_SIZE") == str(place.world_size)


def _open(place: Place, timeout: float, keep: bool) -> Store:
    deadline = time.monotonic() + timeout
    limit = timedelta(seconds=timeout)
    if keep:
        try:
            # By the loopback: whether MASTER_ADDR leads here is looked at below, with a time limit.
            store = TCPStore(
                "127.0.0.1", place.port, is_master=True, wait_for_workers=False, timeout=limit
            )
        except RuntimeError as error:
            raise OSError(
                f"rank 0 cannot open MASTER_PORT={place.port} on this host; it is in use by "
                f"another program, or not allowed: choose another one, or let torchrun choose "
                f"({error})"
            ) from error
        _wait_for_answer(place, min(timeout, SECONDS_BEFORE_A_WARNING))
        return store
    _wait_for_answer(place, timeout)
    return _connect(place, max(deadline - time.monotonic(), 1.0))


def _connect(place: Place, seconds: float) -> Store:
    """Connect to the store that is open by now.

    In a thread, for against a program that takes the connection and never says a word, TCPStore's
    own time-out does not help.
    """
    outcome: list[Store | RuntimeError] = []

    def connect() -> None:
        limit = timedelta(seconds=seconds)
        try:
            outcome.append(TCPStore(place.address, place.port, is_master=False, timeout=limit))
        except RuntimeError as error:
            outcome.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(seconds)
    result = outcome[0] if outcome else RuntimeError(f"no word within {seconds:g} s")
    if isinstance(result, Store):
        return result
    raise OSError(
        f"what answers at {place.address}:{place.port} is not the store of rank 0 ({result})"
    ) from result


def _wait_for_answer(place: Place, timeout: float) -> None:
    """Try to connect until somebody answers; OSError with the last reason after `timeout`."""
    start, warned = time.monotonic(), False
    where = f"MASTER_ADDR={place.address} MASTER_PORT={place.port}"
    while True:
        left = max(timeout - (time.monotonic() - start), 0.01)
        try:
            socket.create_connection((place.address, place.port), timeout=min(left, 5.0)).close()
            return
        except OSError as error:
            reason = str(error)
        waited = time.monotonic() - start
        if waited >= timeout:
            way_out = "is rank 0 running, on that host, and the port open between the hosts?"
            if place.rank == 0:
                way_out = "rank 0 runs on this host, so MASTER_ADDR must be an address of it"
            raise OSError(
                f"rank {place.rank} found nobody at {where} within {timeout:g} s ({reason}): "
                f"{way_out}"
            )
        if waited >= SECONDS_BEFORE_A_WARNING and not warned:
            warned = True
            warnings.warn(
                f"rank {place.rank} still waits for rank 0 at {where} ({reason}); up to "
                f"{timeout:g} s",
                RuntimeWarning,
                stacklevel=2,
            )
        time.sleep(0.1)  # until rank 0 has opened its port


def meet(store: Store, rank: int, card: Card, timeout: float) -> list[Card]:
    """Exchange cards with all ranks; theirs, by rank.

    Raises:
        RuntimeError: two processes have the same rank.
        TimeoutError: some ranks have not come.
    """
    if store.add(f"count/{rank}", 1) > 1:
        raise RuntimeError(
            f"rank {rank} is here already: two processes were started with RANK={rank}, or "
            "torchrun restarted the ranks of several hosts with the store of the first attempt; "
            "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for it then"
        )
    store.set(f"card/{rank}", json.dumps(asdict(card)))
    keys = {other: f"card/{other}" for other in range(card.world_size)}

    def describe(missing: list[int]) -> str:
        joined = card.world_size - len(missing)
        verb = "is" if len(missing) == 1 else "are"
        return f"{joined} of {card.world_size} ranks joined; {join_numbers(missing)} {verb} missing"

    missing = missing_after_wait(store, keys, timeout, describe)
    if missing:
        raise TimeoutError(
            f"{describe(missing)} after {timeout:g} s: was one process started for each rank, "
            f"with WORLD_SIZE={card.world_size}?"
        )
    return [Card(**json.loads(store.get(key))) for key in keys.values()]
