"""One process, no process group: the same script without a launcher."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from minddp.backends.distributed_backend import DistributedBackend


class DummyBackend(DistributedBackend):
    """World size 1. Model, optimizer and scheduler come back as they are, data with a sampler."""

    BACKEND_MODULE_NAME = "torch"
    BACKEND_NAME = "Dummy"

    def _initialize(self) -> None:
        pass

    def _shutdown(self) -> None:
        pass

    def _get_world_size(self) -> int:
        return 1

    def _get_rank(self) -> int:
        return self.ROOT_RANK

    def _get_local_rank(self) -> int:
        return self.LOCAL_ROOT_RANK

    def _barrier(self, name: str, timeout: float | None) -> None:
        pass

    def _local_barrier(self, name: str, timeout: float | None) -> None:
        pass

    def _average_all(self, tensor: Tensor, group: Any) -> Tensor:
        if group is not None:
            raise ValueError(f"the Dummy backend has no process groups, but group is {group!r}")
        return tensor

    def _from_root(self, packed: bytes) -> bytes:
        return packed

    def _distribute(self, model: nn.Module, optimizer: Any, lr_scheduler: Any) -> Any:
        return model, optimizer, lr_scheduler
