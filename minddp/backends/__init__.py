"""Backends: the same training script on one process, on torch.distributed, or on what you add."""

from minddp.backends.distributed_backend import DistributedBackend
from minddp.backends.dummy_backend import DummyBackend
from minddp.backends.installation import BackendUnavailable
from minddp.backends.selection import (
    BACKENDS,
    add_backend_args,
    backend_from_args,
    using_backend,
)
from minddp.backends.torch_backend import TorchBackend

__all__ = [
    "BACKENDS",
    "BackendUnavailable",
    "DistributedBackend",
    "DummyBackend",
    "TorchBackend",
    "add_backend_args",
    "backend_from_args",
    "using_backend",
]
