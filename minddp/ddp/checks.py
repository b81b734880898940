"""What is made sure before training starts: a usable group, the same model on every rank, the
same weights on every rank. Each problem is raised on every rank, with the culprit's name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter

from minddp.agreement import require_same
from minddp.buckets import flatten, group_by_kind, plan_buckets, unflatten

if TYPE_CHECKING:
    from minddp.ddp.bucket import Bucket

BROADCAST_BYTES = 250 * 2**20  # at most this much at a time, as torch does


def require_group(
    process_group: dist.ProcessGroup | None, device_mesh: Any = None
) -> dist.ProcessGroup:
    """The given group, or that of a 1-D mesh, or the default one.

    Raises:
        RuntimeError: torch.distributed is not initialised; a group and a mesh; a mesh not 1-D.
        TypeError: not a process group.
        ValueError: this rank is not a member. (The original divides by a world size of -1 then,
            and trains on gradients with the wrong sign.)
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "no process group: call torch.distributed.init_process_group() first, or run this "
            "function with minddp.launch(), which does it for you"
        )
    if device_mesh is not None:
        if process_group is not None:
            raise RuntimeError("Cannot specify both process_group and device_mesh arguments.")
        if device_mesh.ndim != 1:
            raise RuntimeError(f"Only 1D device mesh is supported, not {device_mesh}.")
        process_group = device_mesh.get_group(mesh_dim=0)
    if process_group is None:
        process_group = dist.group.WORLD
    if cast(Any, process_group) == dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(
            f"rank {dist.get_rank()} is not a member of this process group; wrap the model only "
            "on the group's own ranks"
        )
    if not isinstance(process_group, dist.ProcessGroup):
        raise TypeError(
            f"process_group must be a torch.distributed.ProcessGroup, not {process_group!r} "
            "(device_ids is a keyword argument here)"
        )
    return process_group


def require_module(module: nn.Module, device_ids: list[Any] | None) -> None:
    """Is this something to wrap?

    Raises:
        TypeError: not a module.
        ValueError: `device_ids` that do not fit.
        RuntimeError: a parameter has no shape yet (LazyLinear and friends).
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, not {type(module).__name__}")
    devices = {str(param.device) for param in module.parameters()}
    if device_ids and (len(device_ids) > 1 or devices == {"cpu"}):
        raise ValueError(
            f"device_ids={device_ids}, but the model is on {', '.join(sorted(devices))}: each "
            "process drives one device; leave device_ids out on CPU"
        )
    for name, param in module.named_parameters():
        if isinstance(param, nn.parameter.UninitializedParameter):
            raise RuntimeError(
                f"{name} has no shape yet: run one batch through the model before wrapping it"
            )


def describe(name: str, tensor: Tensor) -> str:
    """One line about a tensor, e.g. ``fc.weight (3, 2) float32 trainable``."""
    strides = "" if tensor.is_contiguous() else f" with strides {tensor.stride()}"
    trainable = "trainable" if tensor.requires_grad else "frozen"
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{name} {tuple(tensor.shape)}{strides} {dtype} {trainable}"


def require_something_to_train(trainable: Mapping[Any, str], module: nn.Module) -> None:
    """Raise RuntimeError if there is no parameter to average."""
    if not trainable:
        raise RuntimeError(
            f"{type(module).__name__} has no parameter that requires a gradient: there is nothing "
            "to average. Use it unwrapped."
        )


def require_same_model(lines: Sequence[str], group: dist.ProcessGroup) -> None:
    """Raise RuntimeError on every rank if the ranks' models, a line per parameter, differ."""
    advice = (
        "Build the same model on every rank before wrapping it; a layer whose size depends on the "
        "rank, or a rank that built nothing, is a usual cause."
    )
    require_same("model", lines, advice, group)


def require_same_bucket(bucket: Bucket, model: int, step: int) -> None:
    """Debug mode: raise RuntimeError on every rank if they are not about to reduce the same.

    Args:
        model: which wrapped model this is, counted in the order of wrapping.
    """
    dtype = str(bucket.buffer.dtype).removeprefix("torch.")
    what = f"wrapped model {model}, step {step}: all_reduce of {bucket.buffer.numel()} {dtype}"
    advice = "The ranks are at different steps or models, or disagree about which parameters train."
    require_same("next collective", [what, *bucket.names], advice, bucket.group)


def require_untouched(
    parameters: Iterable[Parameter], versions: Sequence[int], names: Mapping[Parameter, str]
) -> None:
    """Raise RuntimeError if a parameter was written to while backward ran.

    Args:
        versions: autograd's count of the writes to each parameter, from before the backward.
    """
    for param, version in zip(parameters, versions, strict=True):
        if param._version != version:
            raise RuntimeError(
                f"{names.get(param, 'a parameter')} was changed while backward ran, before its "
                "gradient was averaged. Does an optimizer step inside a gradient hook? Let it step "
                "after backward."
            )


def require_all_used(
    names: Mapping[Parameter, str],
    used: Collection[Parameter],
    group: dist.ProcessGroup,
    working: int,
) -> None:
    """Raise RuntimeError on every rank if a backward left a parameter out on some rank.

    A collective: one all-reduce of a number per parameter.

    Args:
        used: those with a gradient on this rank.
        working: number of ranks that ran a backward.
    """
    device = next(iter(names)).device
    counts = torch.tensor([int(param in used) for param in names], device=device)
    dist.all_reduce(counts, group=group)
    left_out = [
        f"{name} (used on {count} of {working} ranks)"
        for name, count in zip(names.values(), counts.tolist(), strict=True)
        if count < working
    ]
    if left_out:
        raise RuntimeError(
            f"rank {dist.get_rank(group)}: this backward left parameters out: "
            f"{', '.join(left_out)}. Drop layers that the loss does not depend on, or leave "
            "error_on_unused off: then a parameter that no rank used keeps its gradient as it "
            "was, and the others are averaged."
        )


@torch.no_grad()
def broadcast_tensors(tensors: Iterable[Tensor], group: dist.ProcessGroup, source: int = 0) -> None:
    """Overwrite tensors with those of one rank, packed into as few broadcasts as memory allows.

    Args:
        tensors: same shapes and dtypes on every rank.
        source: rank *within the group* whose values win.
    """
    for kind in group_by_kind([tensor for tensor in tensors if tensor.numel() > 0]):
        sizes = [tensor.numel() * tensor.element_size() for tensor in kind]
        for indices in plan_buckets(sizes, BROADCAST_BYTES, mode="threshold"):
            some = [kind[index] for index in indices]
            flat = flatten(some)
            dist.broadcast(flat, dist.get_global_rank(group, source), group=group)
            for tensor, window in zip(some, unflatten(flat, some), strict=True):
                # Through .data: a value that autograd saved for backward may be overwritten by
                # its own equal, and two forwards before one backward are no error.
                tensor.data.copy_(window)
