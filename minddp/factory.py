"""Pick a DDP class by name, and keep the model usable.

This is what fairseq's `DistributedFairseqModel` is for: ``--ddp-backend c10d`` or ``no_c10d``
chooses how gradients are averaged, and `model.max_positions`, say, still works on the result. The
original makes a new class in each call and forwards what is missing; every attribute that torch's
DDP happens to have hides the model's, writes land on the wrapper, and nothing can be pickled. Here
it is the other way round: a short list of names is the wrapper's, all others are the model's.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from minddp.ddp import BaseDDP
from minddp.ddp.pass_through import PassThrough
from minddp.ddp_choice import FLAGS, add_ddp_args, check_options, ddp_class

__all__ = ["DistributedModel", "add_ddp_args", "unwrap"]

# The wrapper's own names. `module` is the model, `ddp` what averages its gradients.
OWN = {"module", "ddp", "ddp_backend", "forward", "train", "eval", "from_args"}
# These belong to the DDP object.
OF_DDP = {
    "no_sync",
    "join",
    "reduce_gradients",
    "all_reduce_grads",
    "register_comm_hook",
    "require_backward_grad_sync",
    "accumulate_grads",
    "process_group",
}


class DistributedModel(nn.Module):
    """A model whose gradients are averaged by the DDP class of your choice.

    Reading, writing or deleting an attribute means the model's, methods and state dict included, so
    names have no ``module.`` in front, in `state_dict` as in `named_parameters`, also when this is
    a part of a larger module. The exceptions are `OWN` and `OF_DDP` above. Special methods are
    never forwarded, but for ``len``, ``[]``, ``in`` and iteration.

    Args:
        model: any module that is not wrapped yet; it may come from `torch.compile`.
        ddp_backend: a key of `DDP_BACKENDS`: naive, flat, legacy (no_c10d), overlapped, or c10d for
            torch's own class.
        process_group: the ranks to average over; the default group if None.
        options: arguments of the chosen class.

    With one process, or nothing to train, the model runs as it is, with a warning.

    Raises:
        ValueError: unknown backend, an option that the class does not take, a model that is wrapped
            already.
        RuntimeError: several ranks were started, but no process group is initialised.
    """

    module: nn.Module
    ddp: Any

    def __init__(
        self,
        model: nn.Module,
        ddp_backend: str = "overlapped",
        process_group: dist.ProcessGroup | None = None,
        **options: Any,
    ) -> None:
        # Not nn.Module.__init__: parameters, hooks and flags are the model's, there are no others.
        backend = ddp_class(ddp_backend)
        check_options(ddp_backend, backend, options)
        parts = [model, *model.modules()]
        if any(isinstance(part, (DistributedModel, *WRAPPERS)) for part in parts):
            name = type(unwrap(model)).__name__
            raise ValueError(f"this {name}, or a part of it, is wrapped already: unwrap() it first")
        reason = _nothing_to_do(model, process_group)
        if reason:
            warnings.warn(
                f"{type(unwrap(model)).__name__} is used as it is: {reason}", stacklevel=2
            )
            ddp: nn.Module = PassThrough(model)
        else:
            ddp = backend(model, process_group=process_group, **options)
        self.__dict__.update(module=unwrap(model), ddp=ddp, ddp_backend=ddp_backend)

    @classmethod
    def from_args(
        cls, args: argparse.Namespace, model: nn.Module, process_group: Any = None
    ) -> DistributedModel:
        """Wrap a model as the flags of `add_ddp_args` say."""
        given = {name: getattr(args, name, None) for name in FLAGS}
        options = {name: value for name, value in given.items() if value is not None}
        return cls(model, args.ddp_backend, process_group, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.ddp(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The same as calling the model."""
        return self.ddp(*args, **kwargs)

    def train(self, mode: bool = True) -> DistributedModel:
        """Training mode for model and wrapper."""
        self.ddp.train(mode)
        return self

    def eval(self) -> DistributedModel:
        """Evaluation mode for model and wrapper."""
        return self.train(False)

    def __getattribute__(self, name: str) -> Any:
        if _is_own(name):
            return object.__getattribute__(self, name)
        raise AttributeError(name)  # Python goes on to __getattr__, whose errors it keeps

    def __getattr__(self, name: str) -> Any:
        owner = _owner(self, name)
        for kind in type(owner).__mro__:
            if name in kind.__dict__:
                found = kind.__dict__[name]
                if isinstance(found, property):  # asked directly, it keeps its own error
                    return found.__get__(owner, type(owner))
                break
        try:
            return getattr(owner, name)
        except AttributeError as error:
            raise AttributeError(
                f"neither DistributedModel nor {type(owner).__name__} has an attribute {name!r}"
            ) from error

    def __setattr__(self, name: str, value: Any) -> None:
        if name in OWN:
            raise AttributeError(f"{name} belongs to the wrapper; wrap a model anew to change it")
        setattr(_owner(self, name), name, value)

    def __delattr__(self, name: str) -> None:
        if name in OWN:
            raise AttributeError(f"{name} belongs to the wrapper and cannot be deleted")
        delattr(_owner(self, name), name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self.module), *OWN, *(name for name in OF_DDP if hasattr(self, name))})

    def __repr__(self) -> str:
        return f"DistributedModel({self.ddp_backend}: {self.module!r})"

    def __len__(self) -> int:
        return len(self.module)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, index: Any) -> Any:
        return self.module[index]  # type: ignore[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.module)  # type: ignore[call-overload,no-any-return]

    def __contains__(self, item: Any) -> bool:
        return item in self.module  # type: ignore[operator]

    def __getstate__(self) -> dict[str, Any]:
        return {"ddp": self.ddp, "ddp_backend": self.ddp_backend}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, module=unwrap(state["ddp"]))


def _is_own(name: str) -> bool:
    return name in OWN or (name.startswith("__") and name.endswith("__"))


def _owner(wrapper: DistributedModel, name: str) -> Any:
    """Whose attribute is it, the model's or the DDP object's?"""
    if _is_own(name):
        raise AttributeError(f"this DistributedModel has no {name}")
    state = object.__getattribute__(wrapper, "__dict__")
    if "ddp" not in state:
        raise AttributeError(f"{name}: this DistributedModel is not initialised yet")
    return state["ddp"] if name in OF_DDP else state["module"]


WRAPPERS = (BaseDDP, DistributedDataParallel, PassThrough)


def _nothing_to_do(model: nn.Module, process_group: Any) -> str:
    if not any(param.requires_grad for param in model.parameters()):
        return "no parameter requires a gradient"
    if dist.is_available() and dist.is_initialized():
        alone = dist.get_world_size(process_group) == 1
        return "the process group has one rank" if alone else ""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise RuntimeError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but no process group is initialised: call "
            "torch.distributed.init_process_group(), or initialize() of a minddp backend, first"
        )
    return "there is one process and no process group"


def unwrap(model: Any) -> nn.Module:
    """The bare model inside any number of wrappers: minddp's, torch's DDP, `torch.compile`'s. A
    bare model is returned as it is, also if it has a child called ``module``."""
    while True:
        if isinstance(model, (DistributedModel, *WRAPPERS)):
            model = model.module
        elif type(model).__name__ == "OptimizedModule":  # by name: its import costs a second
            model = model._orig_mod
        else:
            bare: nn.Module = model
            return bare
