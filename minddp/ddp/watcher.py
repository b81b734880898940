"""When does a backward begin, and when has it ended?

Autograd has no event for it. A hook on each parameter fires when that parameter's gradient is
finished; the first one to fire in a backward asks the engine to call us back at the end. So it does
not matter how the graph was made: by the wrapper's forward, by a sub-module, by a method.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter

from minddp.ddp.outputs import Edges, accumulates_gradients, tensors_in
from minddp.ddp.replica import Replica


class Backward:
    """One run of backward. The engine's callback owns it: if backward fails half-way, the engine
    drops the callback, this object dies with it, and nothing of it is left for the next run."""


class BackwardWatcher(Replica):
    """A replica that notices every backward through its parameters.

    Subclasses say what to do in `_backward_begins` and `_backward_has_ended`; both are called only
    for a backward that is to be averaged, not inside `no_sync`."""

    require_backward_grad_sync = True  # torch's name for what no_sync() switches off

    error_on_unused = False

    def _connect(self, module: nn.Module, group: dist.ProcessGroup) -> None:
        super()._connect(module, group)
        self._backward: weakref.ref[Backward] | None = None
        self._forward_was_synced = True
        self._used: set[Parameter] = set()  # since the last averaging, if error_on_unused
        self._local = False  # True while gradients wait for the end of an accumulation

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients locally: a backward that runs inside does not average them, and the
        next one outside averages the whole sum.

        It is *backward* that counts. (torch looks at forward: a forward inside with its backward
        outside leaves gradients local. Here they are averaged, with a warning.)"""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def _watch_outputs(self, output: Any) -> None:
        """Hook the outputs of forward, for a backward that reaches none of our parameters."""
        for tensor in tensors_in(output):
            if tensor.grad_fn is not None:
                below = tensor.grad_fn.next_functions
                tensor.register_hook(functools.partial(self._output_reached, below))

    def _output_reached(self, below: Edges, grad: Tensor) -> None:
        if not self._in_backward() and accumulates_gradients(self._handles, below):
            self._begin_backward()

    def _gradient_ready(self, param: Parameter) -> None:
        """Autograd has finished `param.grad`: every use of it in the graph is summed up."""
        if self._backward is None or self._backward() is None:
            self._begin_backward()
        if self.error_on_unused:
            self._used.add(param)
        if self.require_backward_grad_sync:
            self._one_is_ready(param)

    def _in_backward(self) -> bool:
        return self._backward is not None and self._backward() is not None

    def _begin_backward(self) -> None:
        if self.require_backward_grad_sync:
            self._backward_begins()  # first: if it raises, no trace of this backward is left
        backward = Backward()
        self._backward = weakref.ref(backward)
        at_the_end = functools.partial(self._end_backward, backward)
        torch.autograd.Variable._execution_engine.queue_callback(at_the_end)

    def _end_backward(self, backward: Backward) -> None:
        self._backward = None
        if not self.require_backward_grad_sync:
            self._local = True
            return
        if not self._forward_was_synced:
            self._forward_was_synced = True
            warnings.warn(
                "forward ran inside no_sync() but backward outside: the gradients are averaged "
                "(torch's DDP would leave them local). Put both on the same side.",
                stacklevel=2,
            )
        self._backward_has_ended()

    def _backward_begins(self) -> None:
        raise NotImplementedError

    def _one_is_ready(self, param: Parameter) -> None:
        """A gradient is there. Most rungs wait for the end."""

    def _backward_has_ended(self) -> None:
        raise NotImplementedError

    def guard(self, optimizer: torch.optim.Optimizer) -> None:
        """From now on let `optimizer.step()` raise RuntimeError while gradients are only local."""

        def refuse_local_gradients(*_: Any) -> None:
            trainable = self._dense | self._sparse
            local = [name for param, name in trainable.items() if param.grad is not None]
            if self._local and local:
                raise RuntimeError(
                    f"rank {self.rank}: gradients of {len(local)} parameters were not reduced "
                    f"({local[0]} first): the last backward ran inside no_sync(). Run the last "
                    "micro-batch outside, or call reduce_gradients() before step()."
                )

        optimizer.register_step_pre_hook(refuse_local_gradients)
