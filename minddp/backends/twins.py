"""What the author of a backend writes: two names, and the methods with an underscore.

They are called by the public methods of `DistributedBackend`, which have the same names without
the underscore, and only while the backend is initialised.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor, nn


class BackendTwins(ABC):
    """The abstract part of `DistributedBackend`; derive from that one."""

    BACKEND_MODULE_NAME: ClassVar[str]  # the module to import, such as "horovod.torch"
    BACKEND_NAME: ClassVar[str]  # for people
    INSTALL_HINT: ClassVar[str] = ""  # how to get the module
    ROOT_RANK: ClassVar[int] = 0
    LOCAL_ROOT_RANK: ClassVar[int] = 0

    @abstractmethod
    def _initialize(self) -> None: ...

    @abstractmethod
    def _shutdown(self) -> None:
        """Undo _initialize, also one that failed half-way."""

    @abstractmethod
    def _get_world_size(self) -> int: ...

    @abstractmethod
    def _get_rank(self) -> int: ...

    @abstractmethod
    def _get_local_rank(self) -> int: ...

    @abstractmethod
    def _barrier(self, name: str, timeout: float | None) -> None: ...

    @abstractmethod
    def _local_barrier(self, name: str, timeout: float | None) -> None: ...

    @abstractmethod
    def _average_all(self, tensor: Tensor, group: Any) -> Tensor:
        """The mean over ranks of a float tensor that is ours to overwrite."""

    @abstractmethod
    def _from_root(self, packed: bytes) -> bytes: ...

    @abstractmethod
    def _distribute(self, model: nn.Module, optimizer: Any, lr_scheduler: Any) -> Any:
        """The three twins."""
