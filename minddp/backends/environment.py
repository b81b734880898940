"""Which rank am I, and where do the ranks meet? Read from the environment, all faults at once.

torchrun, and whatever speaks its language, sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and
LOCAL_RANK beside them. Slurm's srun says the same in words of its own.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

WAYS_TO_START = """ways to start:
  torchrun --nproc-per-node 2 script.py    a launcher that sets them all (so does Slurm's srun)
  minddp.launch(fn, world_size=2)          from a notebook or a script
  DummyBackend(), or --distributed-backend dummy    one process, without a launcher"""


@dataclass(frozen=True)
class Place:
    """A rank's place, as its environment tells it.

    `node` is equal on the ranks of one host and only there; `local_rank` is None where nothing
    tells it.
    """

    rank: int
    world_size: int
    address: str
    port: int
    node: str
    local_rank: int | None = None


def place_from_environment(environment: Mapping[str, str] | None = None) -> Place:
    """Read the place. Raises ValueError with every fault found, and the ways to start."""
    env = dict(os.environ if environment is None else environment)
    if "RANK" not in env and "WORLD_SIZE" not in env and "SLURM_PROCID" in env:
        env = in_torch_words(env)
    faults = _faults(env)
    if faults:
        lines = "".join(f"\n  - {fault}" for fault in faults)
        raise ValueError(
            f"the environment does not tell this process its place among the ranks:{lines}\n"
            f"{WAYS_TO_START}"
        )
    local_rank = int(env["LOCAL_RANK"]) if env.get("LOCAL_RANK") else None
    return Place(
        rank=int(env["RANK"]),
        world_size=int(env["WORLD_SIZE"]),
        address=env["MASTER_ADDR"],
        port=int(env["MASTER_PORT"]),
        node=node_name(env, int(env["RANK"]), local_rank),
        local_rank=local_rank,
    )


def node_name(env: Mapping[str, str], rank: int, local_rank: int | None) -> str:
    """A name for this rank's host, different from those of the others."""
    for variable in ("GROUP_RANK", "SLURM_NODEID"):  # the number of the host
        if variable in env:
            return f"{variable} {env[variable]}"
    # torch's convention: the ranks of a host are neighbours, so its first one identifies it.
    first = "" if local_rank is None else f", first rank {rank - local_rank}"
    return socket.gethostname() + first


def in_torch_words(env: Mapping[str, str]) -> dict[str, str]:
    """Slurm's variables under torch's names. MASTER_ADDR and MASTER_PORT win if they are set;
    otherwise the ranks meet on the first host of the step, at a port made from the job's number."""
    result = {
        name: env[name]
        for name in ("MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", "SLURM_NODEID")
        if name in env
    }
    for theirs, ours in (
        ("SLURM_PROCID", "RANK"),
        ("SLURM_NPROCS", "WORLD_SIZE"),  # the last one that is there wins
        ("SLURM_NTASKS", "WORLD_SIZE"),
        ("SLURM_STEP_NUM_TASKS", "WORLD_SIZE"),
        ("SLURM_LOCALID", "LOCAL_RANK"),
    ):
        if theirs in env:
            result[ours] = env[theirs]
    hosts = env.get("SLURM_STEP_NODELIST", env.get("SLURM_JOB_NODELIST", ""))
    if hosts:
        result.setdefault("MASTER_ADDR", first_host(hosts))
    job = env.get("SLURM_JOB_ID", "")
    if job.isdecimal():
        result.setdefault("MASTER_PORT", str(15000 + int(job) % 15000))
    return result


def first_host(hosts: str) -> str:
    """The first of Slurm's list of hosts: "gpu[03-05,9],cpu1" begins with gpu03."""
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", hosts).split(",")[0]


def _faults(env: Mapping[str, str]) -> list[str]:
    needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    faults = [f"{name} is not set" for name in needed if not env.get(name)]
    numbers = {}
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        text = env.get(name, "")
        if text.isascii() and text.isdecimal():
            numbers[name] = int(text)
        elif text:
            faults.append(f"{name}={text!r} is not a whole number of 0 or more")
    for small, large in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        if small in numbers and large in numbers and numbers[small] >= numbers[large]:
            faults.append(f"{small}={numbers[small]} is not below {large}={numbers[large]}")
    if numbers.get("LOCAL_RANK", 0) > numbers.get("RANK", 2**62):
        faults.append(f"LOCAL_RANK={numbers['LOCAL_RANK']} is above RANK={numbers['RANK']}")
    if not 1 <= numbers.get("MASTER_PORT", 1) <= 65535:
        faults.append(f"MASTER_PORT={numbers['MASTER_PORT']} is no port: they go from 1 to 65535")
    return faults
