"""A backend that notes which twins were called, and what a call raises. Used inside ranks too."""

from __future__ import annotations

from typing import Any

from minddp.backends import DistributedBackend


class Noting(DistributedBackend):
    """One process; `calls` has the life of it, and `fails` lets initialize() fail."""

    BACKEND_MODULE_NAME = "torch"
    BACKEND_NAME = "Noting"

    def __init__(self, fails: bool = False) -> None:
        self.calls: list[str] = []
        self.fails = fails

    def _initialize(self):
        self.calls.append("initialize")
        if self.fails:
            raise OSError("no network")

    def _shutdown(self):
        self.calls.append("shutdown")

    def _get_world_size(self):
        return 2

    def _get_rank(self):
        return 0

    def _get_local_rank(self):
        return 0

    def _barrier(self, name, timeout):
        self.calls.append(f"barrier {name} {timeout}")

    def _local_barrier(self, name, timeout):
        self.calls.append(f"local barrier {name} {timeout}")

    def _average_all(self, tensor, group):
        return tensor

    def _from_root(self, packed):
        return packed

    def _distribute(self, model, optimizer, lr_scheduler):
        return model, optimizer, lr_scheduler


def error_of(call: Any, *args: Any, **options: Any) -> str:
    """Type and text of what a call raises; "no error" if it does not."""
    try:
        call(*args, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
