"""Choose a backend by a flag, with flags that mean the same whatever is installed."""

from __future__ import annotations

import argparse
import difflib
import os
from typing import Any

from minddp.backends.distributed_backend import DistributedBackend
from minddp.backends.dummy_backend import DummyBackend
from minddp.backends.torch_backend import TorchBackend
from minddp.ddp_choice import FLAGS

# Add your own under a lower-case name. None: known, but not part of this version yet.
BACKENDS: dict[str, type[DistributedBackend] | None] = {
    "dummy": DummyBackend,
    "torch": TorchBackend,
    "gloo": TorchBackend,
    "nccl": TorchBackend,
    "deepspeed": None,
    "horovod": None,
}
COMMUNICATION = ("gloo", "nccl")  # TorchBackend with this communication

_chosen: list[DistributedBackend] = []  # the last one of backend_from_args


def add_backend_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add --distributed-backend, --local-rank and --deepspeed, each with - and _.

    Flags that the parser has already stay as they are, so it may be called again. Nothing is
    imported, and the backend's own flags are added too.
    """
    names = ["--distributed-backend", "--distributed_backend", "--distr-backend", "--distr_backend"]
    known = ", ".join(BACKENDS)
    _add(parser, names, help=f"one of {known} (default: dummy, one process)", metavar="NAME")
    local = "number of this process on its host, as some launchers give it (default: $LOCAL_RANK)"
    _add(parser, ["--local-rank", "--local_rank"], type=int, help=local, metavar="N")
    _add(
        parser,
        ["--deepspeed"],
        action="store_true",
        default=False,
        help="the same as --distributed-backend deepspeed",
    )
    return parser


def _add(parser: argparse.ArgumentParser, names: list[str], **settings: Any) -> None:
    """Add what is missing of an option's spellings, with the destination of those that exist."""
    there = parser._option_string_actions  # argparse has no public way to ask
    existing = [there[name] for name in names if name in there]
    missing = [name for name in names if name not in there]
    if missing:
        dest = existing[0].dest if existing else names[0].lstrip("-").replace("-", "_")
        default = existing[0].default if existing else settings.pop("default", None)
        settings.pop("default", None)
        parser.add_argument(*missing, dest=dest, default=default, **settings)


def backend_from_args(args: argparse.Namespace) -> DistributedBackend:
    """The backend that the flags name, not initialised yet. No name means one process.

    Raises:
        ValueError: unknown name (the choices and the nearest are told), flags that contradict each
            other or the environment.
        NotImplementedError: the backend is not part of this version.
    """
    name = getattr(args, "distributed_backend", None)
    if getattr(args, "deepspeed", False):
        if name is not None and name.lower() != "deepspeed":
            raise ValueError(f"--deepspeed contradicts --distributed-backend {name}")
        name = "deepspeed"
    key = _known_name("dummy" if name is None else name)
    backend_class = BACKENDS[key]
    if backend_class is None:
        ready = ", ".join(known for known, found in BACKENDS.items() if found)
        raise NotImplementedError(
            f"the backend {key} is not part of this version of minddp yet; there are {ready}"
        )
    local_rank = _local_rank(args)
    if issubclass(backend_class, TorchBackend):
        backend: DistributedBackend = backend_class(
            communication=key if key in COMMUNICATION else None,
            local_rank=local_rank,
            **_ddp_settings(args),
        )
    else:
        backend = backend_class()
    _chosen[:] = [backend]
    return backend


def using_backend(which: str | type[DistributedBackend]) -> bool:
    """Is the backend that was last chosen by `backend_from_args` of this name or class?

    Raises:
        RuntimeError: none was chosen yet.
        ValueError: unknown name.
    """
    if not _chosen:
        raise RuntimeError("no backend is chosen yet: call backend_from_args(args) first")
    backend = _chosen[0]
    if not isinstance(which, str):
        return isinstance(backend, which)
    key = _known_name(which)
    backend_class = BACKENDS[key]
    if backend_class is None or not isinstance(backend, backend_class):
        return False
    return key not in COMMUNICATION or getattr(backend, "communication", None) == key


def _known_name(name: str) -> str:
    key = name.lower()
    if key in BACKENDS:
        return key
    near = difflib.get_close_matches(key, BACKENDS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown backend {name!r}; choose from {', '.join(BACKENDS)}{hint}")


def _local_rank(args: argparse.Namespace) -> int | None:
    """The flag's number; None if it was not given, or is -1, as old scripts have it."""
    flag, variable = getattr(args, "local_rank", None), os.environ.get("LOCAL_RANK")
    if flag is None or int(flag) < 0:
        return None
    if variable and variable != str(int(flag)):
        raise ValueError(f"--local-rank {flag} contradicts LOCAL_RANK={variable}; leave one out")
    return int(flag)


def _ddp_settings(args: argparse.Namespace) -> dict[str, Any]:
    """What the flags of `minddp.add_ddp_args` say, if the parser has them."""
    given = {name: getattr(args, name, None) for name in FLAGS}
    options = {name: value for name, value in given.items() if value is not None}
    return {"ddp_backend": getattr(args, "ddp_backend", "overlapped"), "ddp_options": options}
