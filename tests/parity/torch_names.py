"""Torch's names for what is in its DDP class, answered from what `OverlappedDDP` knows.

Some of torch's tests look inside torch's class: at its reducer, its telemetry, its private methods,
a few of its attributes. What they check is behaviour that ours has too, only not under those
names, and a package for reading should not carry them all. So they stand here, beside the tests.
Nothing here averages gradients or copies weights: each name reads or translates what the class
does by itself.

One translation is larger. Without `find_unused_parameters=True` torch refuses a model with an
unused parameter; ours handles it, and refuses it only if asked to (`error_on_unused=True`). Ours
then raises when backward ends, torch at the next forward. Here torch's argument asks, and the
error is kept for the next forward and put in torch's terms.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn import Parameter

from minddp.ddp import OverlappedDDP

BUILT_IN_HOOKS = {
    dist.BuiltinCommHookType.ALLREDUCE: default_hooks.allreduce_hook,
    dist.BuiltinCommHookType.FP16_COMPRESS: default_hooks.fp16_compress_hook,
}


class OverlappedWithTorchNames(OverlappedDDP):
    """`OverlappedDDP` that also answers to the names which torch's tests use."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        tolerant = options.get("find_unused_parameters") or options.get("static_graph")
        super().__init__(module, error_on_unused=not tolerant, **options)
        self.telemetry: dict[str, Any] = {"has_error": False, "error": ""}

    def _connect(self, module: nn.Module, group: dist.ProcessGroup) -> None:
        super()._connect(module, group)
        self._reducer = Reducer(module, group)
        self._unused: RuntimeError | None = None

    @property
    def reducer(self) -> Reducer:
        return self._reducer

    # ------------------------------------------------------------------ unused parameters

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._unused is not None:
            with self._logged():
                raise self._unused
        return super().forward(*args, **kwargs)

    def _backward_has_ended(self) -> None:
        self.reducer.end_of_backward()
        try:
            super()._backward_has_ended()
        except RuntimeError as error:
            names = re.findall(r"(\S+) \(used on \d+ of", str(error))
            if not names:
                raise
            self._unused = RuntimeError(self._in_torch_terms(names))

    def _gradient_ready(self, param: Parameter) -> None:
        super()._gradient_ready(param)
        self.reducer.used_now.add(param)

    def _in_torch_terms(self, names: list[str]) -> str:
        watched = [name for name, _ in watched_parameters(self.module)]
        indices = " ".join(str(watched.index(name)) for name in names)
        hint = "set the environment variable TORCH_DISTRIBUTED_DEBUG to either INFO or DETAIL"
        if dist.get_debug_level() != dist.DebugLevel.OFF:
            hint = f"did not receive grad for rank {self.rank}: {', '.join(names)}"
        return (
            "Expected to have finished reduction in the prior iteration. Way out: "
            "passing the keyword argument `find_unused_parameters=True`, or seeing that all "
            "`forward` function outputs participate in calculating loss. Parameter indices "
            f"which did not receive grad for rank {self.rank}: {indices}; {hint}"
        )

    # ------------------------------------------------------------------ telemetry

    @contextmanager
    def _logged(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, TypeError) as error:
            self.telemetry.update(has_error=True, error=str(error))
            raise

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        return {"iteration": self.step, **self.telemetry}

    def register_comm_hook(self, state: Any, hook: Any) -> None:
        with self._logged():
            super().register_comm_hook(state, hook)
        self.telemetry["comm_hook"] = hook.__qualname__

    def _register_builtin_comm_hook(self, kind: dist.BuiltinCommHookType) -> None:
        self.register_comm_hook(None, BUILT_IN_HOOKS[kind])
        self.telemetry["comm_hook"] = str(kind)

    @contextmanager
    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Iterator[None]:
        self._join_config = SimpleNamespace(enable=enable)
        with super().join(divide_by_initial_world_size, enable, throw_on_early_termination):
            self.telemetry["join_uneven_inputs"] = enable
            state = self._join
            yield
        self._authoritative_rank = state.source if state else 0


class Reducer:
    """What torch's tests ask of `DistributedDataParallel.reducer`: which parameters were used.

    Ours has no need to know that. It asks which parameters *have* a gradient, and one that is
    kept from an earlier step counts. So uses are counted here, as the hooks report them."""

    def __init__(self, module: nn.Module, group: dist.ProcessGroup) -> None:
        self.parameters = [param for _, param in watched_parameters(module)]
        self.group = group
        self.used_now: set[Parameter] = set()
        self.history: list[set[Parameter]] = []

    def end_of_backward(self) -> None:
        self.history.append(self.used_now)
        self.used_now = set()

    def _get_local_used_map(self) -> torch.Tensor:
        """For each parameter the number of ranks that used it in the last backward."""
        used = [param in self.history[-1] for param in self.parameters]
        counts = torch.tensor(used, dtype=torch.int32)
        dist.all_reduce(counts, group=self.group)
        return counts

    def _ddp_graph_static(self) -> bool:
        """Has this rank used the same parameters in every backward?"""
        return all(used == self.history[0] for used in self.history)


def watched_parameters(module: nn.Module) -> list[tuple[str, Parameter]]:
    """The trainable parameters of an unwrapped model, but for those to be ignored."""
    ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    named = module.named_parameters()
    return [(name, param) for name, param in named if param.requires_grad and name not in ignored]
