"""One model, kept the same on every rank: what wrapping checks and copies.

Averaged gradients keep replicas equal only if they start equal. So wrapping compares the models of
all ranks, line by line, and then copies the first rank's weights to the others. (fairseq's legacy
class does neither: replicas that start different stay different for ever.)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter

from minddp.ddp import checks
from minddp.ddp.sparse import sparse_parameters
from minddp.ddp.wiring import Wiring


class Replica(nn.Module):
    """This rank's copy of a model. Knows its process group and its trainable parameters by name.

    `_dense` and `_sparse` map each trainable Parameter to its name, in registration order, by the
    kind of gradient that it gets. Subclasses say what happens when one gets a gradient."""

    process_group: dist.ProcessGroup
    module: nn.Module

    def _connect(self, module: nn.Module, group: dist.ProcessGroup) -> None:
        """Join the group: compare the models, then hook each trainable parameter."""
        self.module = module
        self.process_group = group
        self.world_size = group.size()
        self.rank = dist.get_group_rank(group, dist.get_rank())
        self._handles: dict[Parameter, Any] = {}
        weakref.finalize(self, remove_all, self._handles)
        self._scan()

    def _scan(self) -> None:
        """Take stock: which parameters are to be averaged? Every rank must find the same ones."""
        ignored = self._ignored()
        self._wiring = Wiring(self.module, ignored)
        every = {p: n for n, p in self.module.named_parameters() if n not in ignored}
        lines = [type(self).__name__] + [checks.describe(n, p) for p, n in every.items()]
        checks.require_same_model(lines, self.process_group)
        trainable = {p: n for p, n in every.items() if p.requires_grad}
        checks.require_something_to_train(trainable, self.module)
        sparse = sparse_parameters(self.module)
        self._sparse = {p: n for p, n in trainable.items() if p in sparse}
        self._dense = {p: n for p, n in trainable.items() if p not in sparse}
        for param in trainable:
            if param not in self._handles:
                self._handles[param] = param.register_post_accumulate_grad_hook(_hook(self))

    def _ignored(self) -> Collection[str]:
        """Names to leave alone, where torch's users put them."""
        names: Collection[str] = getattr(self.module, "_ddp_params_and_buffers_to_ignore", ())
        return names

    def _buffers_by_name(self) -> dict[str, Tensor]:
        """Looked up afresh each time: a model may put a new tensor in a buffer's place."""
        ignored = self._ignored()
        return {n: b for n, b in self.module.named_buffers() if n not in ignored}

    def _copy_from(self, source: int) -> None:
        """Overwrite parameters and buffers with those of one rank of the group."""
        ignored = self._ignored()
        parameters = [p.detach() for n, p in self.module.named_parameters() if n not in ignored]
        buffers = list(self._buffers_by_name().values())
        checks.broadcast_tensors(parameters + buffers, self.process_group, source)

    def _refuse_new_parameters(self) -> None:
        """Raise RuntimeError if a parameter was replaced or added since wrapping."""
        name = self._wiring.new_parameter()
        if name is not None:
            raise RuntimeError(
                f"{name} is not the one that was wrapped: it was replaced or added afterwards, so "
                "its gradients would stay local. Wrap the model again, and build the optimizer "
                "again too: it still holds the old parameters."
            )

    def _gradient_ready(self, param: Parameter) -> None:
        raise NotImplementedError

    # What a copy or a pickle takes along: settings and weights, neither group nor hooks.

    def __getstate__(self) -> dict[str, Any]:
        if self.process_group is not dist.group.WORLD:
            raise TypeError(
                f"cannot copy or pickle a {type(self).__name__} on a sub-group: only the default "
                "process group can be found again. Copy wrapper.module, and wrap the copy."
            )
        module_own = nn.Module().__dict__
        passing = ("process_group", "require_backward_grad_sync")
        return {
            key: value
            for key, value in self.__dict__.items()
            if key not in passing and (key in module_own or not key.startswith("_"))
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if not dist.is_initialized():
            raise RuntimeError(
                f"a {type(self).__name__} needs an initialised process group to be loaded; without "
                "one load a state_dict of wrapper.module into a bare model instead"
            )
        self._connect(self.module, checks.require_group(None))


def _hook(replica: Replica) -> Callable[[Parameter], None]:
    """A hook that does not keep the wrapper alive: it falls silent when the wrapper is gone."""
    reference = weakref.ref(replica)

    def gradient_is_ready(param: Parameter) -> None:
        alive = reference()
        if alive is not None:
            alive._gradient_ready(param)

    return gradient_is_ready


def remove_all(handles: dict[Parameter, Any]) -> None:
    """Take hooks off the parameters that have them."""
    for handle in handles.values():
        handle.remove()
    handles.clear()
