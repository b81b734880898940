"""No rung at all: for one process, or a model with nothing to train."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn


class PassThrough(nn.Module):
    """Stands in for a DDP class where there is nothing to average."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.require_backward_grad_sync = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own forward."""
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self, *_: Any, **__: Any) -> Iterator[None]:
        """Nothing to hold back."""
        yield

    join = no_sync

    def reduce_gradients(self) -> None:
        """Nothing to average."""
