"""The ranks that something else started: torchrun, or any launcher that sets its variables.

Such a launcher tells each process where it stands by environment variables: RANK of WORLD_SIZE,
and the address (MASTER_ADDR, MASTER_PORT) of a store in which the ranks find each other.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def ranks_given() -> int | None:
    """World size of the ranks that something else started, this process among them; else None.

    Raises ValueError for an environment that describes a group only in part, or wrongly.
    """
    if dist.is_initialized():
        return dist.get_world_size()
    if "RANK" not in os.environ and "WORLD_SIZE" not in os.environ:
        return None
    wrong = [f"{name} is not set" for name in VARIABLES if name not in os.environ]
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        if not os.environ.get(name, "0").isdecimal():
            wrong.append(f"{name}={os.environ[name]!r} is not a whole number")
    if not wrong and int(os.environ["RANK"]) >= int(os.environ["WORLD_SIZE"]):
        wrong.append(
            f"RANK={os.environ['RANK']} is not below WORLD_SIZE={os.environ['WORLD_SIZE']}"
        )
    if wrong:
        raise ValueError(
            f"the environment describes ranks that a launcher started, but {'; '.join(wrong)}. "
            "Start with torchrun, which sets them all, or unset them and use --world-size"
        )
    return int(os.environ["WORLD_SIZE"])


@contextlib.contextmanager
def group_from_environment() -> Iterator[None]:
    """Join the group that the environment describes, and leave it at the end.

    NCCL if this host has a GPU for each of its ranks, gloo otherwise.
    """
    gpu = int(os.environ.get("LOCAL_RANK", 0))
    on_gpus = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", gpu + 1))
    if on_gpus:
        torch.cuda.set_device(gpu)
    dist.init_process_group(
        "nccl" if on_gpus else "gloo",
        store=_store_of_this_attempt(),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def _store_of_this_attempt() -> Any:
    """A part of torchrun's store that no earlier attempt has written to; None: torch's usual way.

    torchrun (since torch 2.5) lends the ranks the store of its own rendezvous, and that outlives
    them. When it restarts them, gloo and NCCL find the addresses of the dead ranks in it and end
    with "connection refused" (pytorch issue 135712). Several hosts count their attempts each for
    itself; there, start torchrun with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 instead.
    """
    lent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    one_host = os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    if not (lent and one_host and attempt):
        return None
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False)  # type: ignore[attr-defined]
    return dist.PrefixStore(f"attempt {attempt}", store)  # type: ignore[attr-defined]
