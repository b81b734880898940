"""Torch's DDP tests with another class in the place of `DistributedDataParallel`.

Importing this module does the work, and its order matters: the class is exchanged first, then
torch's test module is imported, which binds the name. Two environment variables say how:

MINDDP_PARITY_CLASS   `module:Class`; torch's own by default
MINDDP_PARITY_SHIM    `1`: under cpu_shim; `0` (the default): as shipped
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("BACKEND", "gloo")
os.environ.setdefault("WORLD_SIZE", "2")

import torch  # noqa: E402

from . import cpu_shim  # noqa: E402

UNDER_SHIM = os.environ.get("MINDDP_PARITY_SHIM", "0") == "1"


UNDER_TEST = os.environ.get("MINDDP_PARITY_CLASS", "torch.nn.parallel:DistributedDataParallel")


def _exchange_class() -> None:
    module, _, name = UNDER_TEST.partition(":")
    ddp_class = getattr(importlib.import_module(module), name)
    if UNDER_SHIM:
        cpu_shim.install(ddp_class)
    torch.nn.parallel.DistributedDataParallel = ddp_class  # type: ignore[misc]


_exchange_class()

from torch.testing._internal.distributed import distributed_test  # noqa: E402


class DDPTests(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """Torch's tests; each one runs in two fresh ranks.

    Torch starts its ranks by `spawn`, which imports torch anew in each: 5 to 8 s a test. A fork
    server that has this module loaded takes a few tenths of a second.
    """

    def setUp(self) -> None:
        super().setUp()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])

        def process(target: Callable[..., None], name: str, args: Any, kwargs: Any) -> Any:
            work = (dict(os.environ), target, args, kwargs)
            return context.Process(target=_rank_main, name=name, args=work)

        self._start_processes(process)


def _rank_main(
    environment: dict[str, str], target: Callable[..., None], args: Any, kwargs: Any
) -> None:
    """Run one rank of a test, with the parent's environment: the fork server has an older one."""
    os.environ.clear()
    os.environ.update(environment)
    code = 1
    try:
        with cpu_shim.cpu_devices() if UNDER_SHIM else contextlib.nullcontext():
            target(*args, **kwargs)
    except SystemExit as finished:
        code = int(finished.code or 0)
    finally:
        # A rank that a failed test leaves inside a collective would block in the clean-up.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
