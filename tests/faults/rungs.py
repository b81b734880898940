"""The classes under test, each with one bucket and with one bucket per parameter."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from minddp.ddp import DDP_BACKENDS

ONE_BYTE = 1 / 2**20  # in MiB
EACH = {"bucket_cap_mb": ONE_BYTE, "first_bucket_mb": ONE_BYTE}
VIEWS = {"gradient_as_bucket_view": True}


@dataclass(frozen=True)
class Rung:
    """One class with its bucket settings; `wrap` is what a case gets.

    The first backward differs from the later ones: OverlappedDDP only watches in it, LegacyDDP
    makes its buffer. With `practised` one backward has been run before the case begins.
    """

    name: str
    buckets: str
    options: dict = field(default_factory=dict)
    practised: bool = False

    @property
    def label(self) -> str:
        return f"{self.name}, {self.buckets}" + (", later step" if self.practised else "")

    @property
    def traits(self) -> set[str]:
        """What a case may name as the reason not to run here."""
        step = f"{self.name}, {'later' if self.practised else 'first'} step"
        views = {"views"} if VIEWS.keys() <= self.options.keys() else set()
        return {self.name, self.label, step} | views

    def wrap(self, module: nn.Module, **options) -> nn.Module:
        if self.name == "torch":
            options.pop("debug", None)  # a variable of the environment there
        model = DDP_BACKENDS[self.name](module, **self.options, **options)
        if self.practised:
            trained = [p for p in module.parameters() if p.requires_grad]
            sum((p * 5).sum().double() for p in trained).backward()  # a 5 left over would show
            model.zero_grad(set_to_none=True)
        return model


RUNGS = (
    Rung("naive", "one per parameter"),
    Rung("flat", "one bucket"),
    Rung("legacy", "one bucket"),
    Rung("legacy", "one bucket", practised=True),
    Rung("legacy", "one per parameter", {"buffer_size": 1}),
    Rung("overlapped", "one bucket"),
    Rung("overlapped", "one bucket", practised=True),
    Rung("overlapped", "one per parameter", EACH),
    Rung("overlapped", "one per parameter", EACH, practised=True),
    Rung("overlapped", "one bucket, views", VIEWS),
    Rung("overlapped", "one bucket, views", VIEWS, practised=True),
    Rung("overlapped", "one per parameter, views", VIEWS | EACH, practised=True),
)
TORCH = (
    Rung("torch", "one bucket"),
    Rung("torch", "one per parameter", {"bucket_cap_mb": ONE_BYTE}),
)
