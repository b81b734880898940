"""What the ranks find in their environment."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

FLIGHT_RECORDER_ENTRIES = "256"  # collectives that torch remembers, for the diagnosis of a hang


def rank_environment(added: Any, world_size: int, threads: int) -> dict[str, str]:
    """The caller's environment, ours and what the caller adds, but for RANK and LOCAL_RANK.

    Raises TypeError or ValueError for additions that cannot be right.
    """
    env = {**os.environ, **defaults(world_size, threads), **check_env(added)}
    check_interface(env["GLOO_SOCKET_IFNAME"])
    return env


def check_env(env: Any) -> dict[str, str]:
    if env is None:
        return {}
    if not isinstance(env, Mapping):
        raise TypeError(f"env must be a dict of strings, got {type(env).__name__}.")
    for key, value in env.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"env must map strings to strings, got {key!r}: {value!r}.")
    return dict(env)


def defaults(world_size: int, threads: int) -> dict[str, str]:
    """What a rank finds in its environment, the same names that torchrun sets among it."""
    loopback = {"linux": "lo", "darwin": "lo0"}.get(sys.platform, "")
    windows = {"USE_LIBUV": "0"} if sys.platform == "win32" else {}  # torch is built without it
    return windows | {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        # The literal address: looking a host name up can fail, or be slow, without a network.
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": str(threads),
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", loopback),
        "TORCH_FR_BUFFER_SIZE": os.environ.get("TORCH_FR_BUFFER_SIZE", FLIGHT_RECORDER_ENTRIES),
    }


def free_port() -> int:
    """For functions that open a store of their own; the default group needs no port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_interface(names: str) -> None:
    """Raise ValueError if a network interface of GLOO_SOCKET_IFNAME does not exist."""
    available = [name for _, name in socket.if_nameindex()]
    missing = [name for name in names.split(",") if name and name not in available]
    if missing:
        raise ValueError(
            f"GLOO_SOCKET_IFNAME names the network interface {missing[0]!r}, which is not found; "
            f"available: {', '.join(available)}. Unset it: ranks on one machine use the loopback."
        )
