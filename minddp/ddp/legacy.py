"""Rung 3: a buffer of fixed size, filled again and again after backward.

This is fairseq's `LegacyDistributedDataParallel` (``--ddp-backend=no_c10d``). The memory is
bounded, the messages are large, and since everything happens after backward, it does not matter
which parameters a batch used or in which order: models with conditional graphs just work.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter

from minddp.buckets import group_by_kind
from minddp.ddp.base import BaseDDP


class LegacyDDP(BaseDDP):
    """Walks the parameters in registration order and averages them a buffer-full at a time.

    Args:
        buffer_size: capacity of the buffer in *elements* (not bytes), a true maximum: a larger
            parameter travels alone, and at once.
        world_size: accepted because the original's first version took it; it must be the size of
            the group, where the original scaled gradients by whatever it was given.

    Other arguments and errors: see `BaseDDP`."""

    def __init__(
        self,
        module: nn.Module,
        process_group: dist.ProcessGroup | None = None,
        buffer_size: int = 2**28,
        *,
        world_size: int | None = None,
        **options: Any,
    ) -> None:
        if isinstance(buffer_size, bool) or not isinstance(buffer_size, int) or buffer_size < 0:
            raise ValueError(f"buffer_size is a number of elements, 0 or more, not {buffer_size!r}")
        super().__init__(module, process_group, **options)
        if world_size is not None and world_size != self.world_size:
            raise ValueError(
                f"world_size={world_size}, but the process group has {self.world_size} ranks; "
                "leave it out"
            )
        self.buffer_size = buffer_size

    def _connect(self, module: nn.Module, group: dist.ProcessGroup) -> None:
        super()._connect(module, group)
        self._memory: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def _reduce(self) -> None:
        for kind in group_by_kind(list(self._dense)):
            memory = self._buffer_for(kind)
            held: list[Parameter] = []
            room = self.buffer_size
            for param in kind:
                if param.numel() > self.buffer_size:
                    self._average([param])
                    continue
                if param.numel() > room:
                    self._average(held, memory)
                    held, room = [], self.buffer_size
                held.append(param)
                room -= param.numel()
            if held:
                self._average(held, memory)

    def _buffer_for(self, kind: list[Parameter]) -> Tensor:
        """The buffer for parameters of one dtype and device; no larger than they need."""
        key = (kind[0].dtype, kind[0].device)
        needed = min(self.buffer_size, sum(p.numel() for p in kind)) + len(kind)
        if key not in self._memory or self._memory[key].numel() < needed:
            self._memory[key] = kind[0].new_empty(needed)
        return self._memory[key]

    # The original's names.

    def all_reduce_grads(self) -> None:
        """fairseq's name for `reduce_gradients`. Backward has done it already."""
        self.reduce_gradients()

    @property
    def accumulate_grads(self) -> bool:
        """fairseq's switch: True while gradients are only accumulated, as inside `no_sync`."""
        return not self.require_backward_grad_sync

    @accumulate_grads.setter
    def accumulate_grads(self, value: bool) -> None:
        self.require_backward_grad_sync = not value
