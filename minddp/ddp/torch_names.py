"""Names under which users of `torch.nn.parallel.DistributedDataParallel` look for things.

A drop-in has to answer to them too; none of them averages a gradient."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from torch import nn

from minddp.ddp.checks import BROADCAST_BYTES
from minddp.ddp.replica import Replica, remove_all


class TorchNames(Replica):
    """torch's attributes and half-private methods, answered from what a `Replica` knows."""

    broadcast_bucket_size = BROADCAST_BYTES
    step = 0
    _last_error = ""

    @property
    def parameters_to_ignore(self) -> set[str]:
        """Names that are neither compared, copied nor averaged."""
        return set(self._ignored())

    @staticmethod
    def _set_params_and_buffers_to_ignore_for_model(
        module: nn.Module, params_and_buffers_to_ignore: Collection[str]
    ) -> None:
        """Name what DDP is to leave alone, before wrapping."""
        module._ddp_params_and_buffers_to_ignore = params_and_buffers_to_ignore  # type: ignore

    @staticmethod
    def _get_data_parallel_params(module: nn.Module, named_params: bool = False) -> Iterator[Any]:
        """The parameters of a bare module that are not to be ignored."""
        ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
        for name, param in module.named_parameters():
            if name not in ignored:
                yield (name, param) if named_params else param

    def _remove_autograd_hooks(self) -> None:
        """Let go of the model: from now on its gradients are its own."""
        remove_all(self._handles)

    def _set_static_graph(self) -> None:
        """A promise that every step uses the same parameters; not needed here. Only before the
        first step, as in torch."""
        if self.step > 0:
            self._last_error = "_set_static_graph should be called before training loop starts"
            raise RuntimeError(self._last_error)

    def _set_ddp_sink_clone(self, clone: bool) -> None:
        """torch may copy the outputs of forward; here they are never copied."""

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        """Steps so far, and the last error of `_set_static_graph`."""
        error = self._last_error
        return {"iteration": self.step, "has_error": bool(error), "error": error}
