"""A bucket: some gradients that travel together in one flat buffer.

    gradients   [ w1 ....... | b1 | w2 ....... | b2 ]      one window per parameter
    flags       [ 1            1    1            0  ]      one number per parameter

`pack` copies gradients in, `start` launches the all-reduce, `finish` waits and hands the averages
out. The flags say who has a gradient at all. They are averaged with everything else, so after the
all-reduce a flag of 0 means "no rank used this parameter" and its gradient stays as it was: None
stays None, and no optimizer moves a parameter that nobody used. It costs no extra collective.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from minddp.buckets import unflatten

SMALL = 2**14  # elements; below it, calling an operator costs more than what it does


class Bucket:
    """Some parameters' gradients, averaged together over the ranks of `group`.

    Args:
        parameters: each parameter with its name; all of one dtype and device.
        group: the process group to average over.
        index: place of this bucket in the order of launches.
        memory: 1-D tensor to use as buffer, `Bucket.length(parameters)` elements or more; a new
            one if not given.
        as_view: after `finish` let each gradient *be* its window, instead of a copy of it.
    """

    def __init__(
        self,
        parameters: Mapping[Parameter, str],
        group: dist.ProcessGroup,
        index: int = 0,
        memory: Tensor | None = None,
        as_view: bool = False,
    ) -> None:
        self.parameters = list(parameters)
        self.names = list(parameters.values())
        self.group = group
        self.index = index
        self.as_view = as_view
        if memory is None:
            like = self.parameters[0]
            memory = torch.zeros(self.length(parameters), dtype=like.dtype, device=like.device)
        self.buffer = memory[: self.length(parameters)]
        self.gradients = self.buffer[: -len(self.parameters)]
        self.flags = self.buffer[-len(self.parameters) :]
        self.windows = unflatten(self.gradients, self.parameters)
        self.has_gradient = [False] * len(self.parameters)
        self.work: dist.Work | None = None

    @staticmethod
    def length(parameters: Mapping[Parameter, str]) -> int:
        """Elements of the buffer: every gradient, and one flag per parameter."""
        return sum(p.numel() for p in parameters) + len(parameters)

    def pack(self, divisor: float) -> None:
        """Copy every gradient in, divided by `divisor`; zeros where there is none.

        Dividing before the sum keeps float16 from overflowing, as fairseq and torch do."""
        windows: list[Tensor] = []
        gradients: list[Tensor] = []
        for slot, param in enumerate(self.parameters):
            grad = param.grad
            self.has_gradient[slot] = grad is not None
            if grad is None:
                self.windows[slot].zero_()
                continue
            if grad.requires_grad or grad.layout is not torch.strided:
                grad = self._detached(grad, slot)
            windows.append(self.windows[slot])
            gradients.append(grad)
        if self.gradients.numel() > len(gradients) * SMALL:
            for window, grad in zip(windows, gradients, strict=True):
                torch.mul(grad, 1.0 / divisor, out=window)  # one pass over the memory
        elif gradients:
            torch._foreach_copy_(windows, gradients)  # one call for all of them
            self.gradients.mul_(1.0 / divisor)

    def _detached(self, grad: Tensor, slot: int) -> Tensor:
        if grad.layout is not torch.strided:
            raise TypeError(
                f"{self.names[slot]} has a sparse gradient, which cannot share a flat buffer; "
                "only nn.Embedding(sparse=True) and nn.EmbeddingBag(sparse=True) are known to "
                "give one. Use sparse=False."
            )
        warnings.warn(
            "backward(create_graph=True): averaged gradients are constants, a second backward "
            "through them sees only this rank's part",
            stacklevel=2,
        )
        return grad.detach()

    def pack_nothing(self) -> None:
        """Take part without a gradient: zeros, and a flag of 0 everywhere."""
        self.gradients.zero_()
        self.has_gradient = [False] * len(self.parameters)

    def start(self, divisor: float) -> None:
        """Launch the all-reduce and return at once."""
        self.write_flags(divisor)
        self.work = dist.all_reduce(self.buffer, group=self.group, async_op=True)

    def write_flags(self, divisor: float) -> None:
        """Say which gradients this rank has. Summed up over N ranks and divided by N, a flag is the
        share of ranks that have one."""
        if all(self.has_gradient):
            self.flags.fill_(1.0 / divisor)
        else:
            self.flags.copy_(torch.tensor(self.has_gradient))
            self.flags.div_(divisor)

    def wait(self) -> None:
        """Wait until the sum over all ranks is in the buffer."""
        if self.work is not None:
            work, self.work = self.work, None
            work.wait()

    def settle_previous(self) -> None:
        """Wait until no collective can start behind our back. An all-reduce starts when told."""

    def abandon(self) -> None:
        """Let what a failed backward sent arrive, and forget it, its errors too."""
        with contextlib.suppress(Exception):
            self.wait()

    def finish(self) -> None:
        """Wait, then give each parameter that some rank used its averaged gradient."""
        self.wait()
        gradients: list[Tensor] = []
        averages: list[Tensor] = []
        for param, window, used in zip(self.parameters, self.windows, self.used(), strict=True):
            if not used:
                continue
            if self.as_view:
                param.grad = window
            elif param.grad is None:
                param.grad = window.clone()
            else:
                gradients.append(param.grad)
                averages.append(window)
        if gradients:
            torch._foreach_copy_(gradients, averages)

    def used(self) -> list[bool]:
        """For each parameter: did any rank have a gradient? (Without a look at the flags if this
        rank had them all: reading them would make the CPU wait for a GPU.)"""
        if all(self.has_gradient):
            return self.has_gradient
        return [share > 0 for share in self.flags.abs().tolist()]
