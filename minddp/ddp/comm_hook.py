"""Communication hooks: the user's own way to average a bucket, with torch's protocol.

A hook is called as ``hook(state, bucket)`` in place of the all-reduce and returns a
`torch.futures.Future` of one tensor, the averaged gradients. It divides by the world size itself.
torch's own hooks (fp16, bf16, PowerSGD, ...) run as they are.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from minddp.ddp.bucket import Bucket

Hook = Callable[[Any, Any], torch.futures.Future[Any]]


class GradBucket:
    """What a hook sees of a bucket; the methods of `torch.distributed.GradBucket`."""

    def __init__(self, bucket: Bucket, last: bool) -> None:
        self._bucket = bucket
        self._buffer = bucket.gradients
        self._last = last

    def buffer(self) -> Tensor:
        """All gradients of the bucket, 1-D, not yet divided."""
        return self._buffer

    def set_buffer(self, buffer: Tensor) -> None:
        """Put another tensor in the buffer's place, for hooks that are called one by another."""
        self._buffer = buffer

    def index(self) -> int:
        """Place of the bucket in the order of launches, from 0."""
        return self._bucket.index

    def is_last(self) -> bool:
        """Is this the last bucket of the backward?"""
        return self._last

    def gradients(self) -> list[Tensor]:
        """One window of the buffer per parameter, in the parameter's shape."""
        return list(self._bucket.windows)

    def parameters(self) -> list[Tensor]:
        """The parameters whose gradients these are."""
        return list(self._bucket.parameters)


class HookedBucket(Bucket):
    """A bucket that lets a hook do the averaging.

    Hooks are called one after another: the next when the future of the one before is complete. A
    hook such as PowerSGD launches several collectives, each when the one before is done; those of
    two buckets would mix, in an order that differs between ranks. (torch's DDP lets them, and with
    gloo and several buckets PowerSGD brings its processes down.)"""

    def __init__(
        self,
        parameters: Mapping[Parameter, str],
        group: dist.ProcessGroup,
        hook: tuple[Any, Hook],
        previous: Bucket | None,
        last: bool,
        as_view: bool,
    ) -> None:
        index = 0 if previous is None else previous.index + 1
        super().__init__(parameters, group, index, as_view=as_view)
        self.state, self.hook = hook
        self.previous = previous if isinstance(previous, HookedBucket) else None
        self.last = last
        self.future: torch.futures.Future[Any] | None = None

    def start(self, divisor: float) -> None:
        """Have the hook called, now or when the bucket before is done. Flags travel later."""
        self.write_flags(divisor)
        device = self.buffer.device
        self.future = torch.futures.Future(devices=[device] if device.type != "cpu" else None)
        before = self.previous.future if self.previous else None
        if before is None:
            self._call_hook(self.future)
        else:
            before.add_done_callback(functools.partial(self._call_hook, self.future))

    def _call_hook(self, future: torch.futures.Future[Any], _: Any = None) -> None:
        """Call the hook and let its result, or its exception, complete `future`."""
        try:
            answer = self.hook(self.state, GradBucket(self, self.last))
            if not isinstance(answer, torch._C.Future):  # what torch.futures.Future is made of
                raise RuntimeError(
                    f"comm hook {_name(self.hook)} must return a torch.futures.Future of one "
                    f"tensor, not {type(answer).__name__}"
                )
            answer.add_done_callback(lambda done: _pass_on(done, future))
        except Exception as error:
            future.set_exception(error)

    def settle_previous(self) -> None:
        """Wait for the hook before this one: it may launch collectives when its future completes,
        at a moment that differs between ranks. Its error is raised where its bucket is waited
        for."""
        if self.previous is not None and self.previous.future is not None:
            with contextlib.suppress(Exception):
                self.previous.future.wait()

    def wait(self) -> None:
        """Wait for the hook's future and take its tensor over."""
        if self.future is None:
            return
        future, self.future = self.future, None
        result = future.wait()
        average = result[0] if isinstance(result, (list, tuple)) else result
        if average.data_ptr() != self.gradients.data_ptr():
            self.gradients.copy_(average.view(-1))


def _pass_on(done: Any, future: torch.futures.Future[Any]) -> None:
    try:
        future.set_result(done.value())
    except Exception as error:
        future.set_exception(error)


def share_flags(buckets: Sequence[Bucket], group: dist.ProcessGroup) -> None:
    """Average the flags of all buckets in one all-reduce, after the hooks have done their work.

    (Not beside them: a hook may launch collectives when its future completes, at a moment that
    differs between ranks, and ours must not get in between.)"""
    for bucket in buckets:
        bucket.wait()
    flags = torch.cat([bucket.flags.abs().float() for bucket in buckets])
    dist.all_reduce(flags, group=group)
    lengths = [len(bucket.parameters) for bucket in buckets]
    for bucket, some in zip(buckets, flags.split(lengths), strict=True):
        bucket.flags.copy_(some)


def check_hook(hook: Any) -> None:
    """Is this a comm hook?

    Raises:
        TypeError: it cannot be called.
        ValueError: its annotations say that it expects or returns something else.
    """
    if not callable(hook):
        raise TypeError(f"a comm hook must be callable as hook(state, bucket), not {hook!r}")
    signature = inspect.signature(hook)
    bucket = signature.parameters.get("bucket")
    if bucket is not None and not _is_one_of(bucket.annotation, _BUCKET_ANNOTATIONS):
        raise ValueError(
            f"comm hook {_name(hook)}: its bucket annotation should be "
            f"torch.distributed.GradBucket, not {bucket.annotation!r}"
        )
    if not _is_one_of(signature.return_annotation, _RETURN_ANNOTATIONS):
        raise ValueError(
            f"comm hook {_name(hook)}: its return annotation should be "
            f"torch.futures.Future[torch.Tensor], not {signature.return_annotation!r}"
        )


_BUCKET_ANNOTATIONS = (torch._C._distributed_c10d.GradBucket, GradBucket)
_RETURN_ANNOTATIONS = (torch.futures.Future[torch.Tensor], Any)


def _is_one_of(annotation: Any, right: Sequence[Any]) -> bool:
    if isinstance(annotation, str):  # from __future__ import annotations: only the text is there
        return annotation.endswith(("GradBucket", "Future[torch.Tensor]", "Future[Tensor]", "Any"))
    return annotation is inspect.Parameter.empty or annotation in right


def _name(hook: Any) -> str:
    return str(getattr(hook, "__qualname__", hook))
