"""The classes under test, each with one bucket and with one bucket per parameter."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from minddp.ddp import DDP_BACKENDS

A_FEW_BYTES = 1e-6  # MiB: one byte, so that every parameter has a bucket of its own


@dataclass(frozen=True)
class Rung:
    """One class with its bucket settings; `wrap` is what a case gets."""

    name: str
    buckets: str
    options: dict = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.name}, {self.buckets}"

    def wrap(self, module: nn.Module, **options) -> nn.Module:
        return DDP_BACKENDS[self.name](module, **self.options, **options)


TINY = {"bucket_cap_mb": A_FEW_BYTES, "first_bucket_mb": A_FEW_BYTES}
RUNGS = (
    Rung("naive", "one per parameter"),
    Rung("flat", "one bucket"),
    Rung("legacy", "one bucket"),
    Rung("legacy", "one per parameter", {"buffer_size": 1}),
    Rung("overlapped", "one bucket"),
    Rung("overlapped", "one per parameter", TINY),
    Rung("overlapped", "one bucket, views", {"gradient_as_bucket_view": True}),
    Rung("overlapped", "one per parameter, views", {"gradient_as_bucket_view": True, **TINY}),
)
TORCH = (
    Rung("torch", "one bucket"),
    Rung("torch", "one per parameter", {"bucket_cap_mb": A_FEW_BYTES}),
)
