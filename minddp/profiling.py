"""Measure a real model: when, during backward, is each gradient ready?"""

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from minddp.cost_model import require_count
from minddp.step_profile import StepProfile

LossFunction = Callable[[Any, Any], Tensor]
OptimizerFunction = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of scores (..., classes) against class numbers (...)."""
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def profile_step(
    model: nn.Module,
    batch: tuple[Any, Any],
    loss_fn: LossFunction = cross_entropy,
    optimizer_fn: OptimizerFunction | None = None,
    steps: int = 5,
    name: str | None = None,
) -> StepProfile:
    """Run a few training steps of a copy of ``model`` and take the median of each time.

    Args:
        model: the model itself, not wrapped in DDP. It is left as it was.
        batch: ``(inputs, targets)``; the loss is ``loss_fn(model(inputs), targets)``.
        optimizer_fn: makes the optimizer from the parameters; without it ``optimizer_s`` is 0.
        steps: steps that count; one more goes before them, to warm up.

    Returns:
        A profile of the trainable parameters, in the order of ``model.parameters()``. A
        parameter that got no gradient is ready at the end of backward, when DDP gives up waiting.

    Raises:
        ValueError: ``steps`` below 1, or a model without trainable parameters.
    """
    require_count("steps", steps)
    model = copy.deepcopy(model)
    named = [(path, p) for path, p in model.named_parameters() if p.requires_grad]
    params = [parameter for _, parameter in named]
    if not params:
        raise ValueError("model must have at least one parameter with requires_grad, got none")
    optimizer = optimizer_fn(params) if optimizer_fn else None
    watch = _Stopwatch(params)
    runs = [_one_step(model, batch, loss_fn, optimizer, watch) for _ in range(steps + 1)][1:]
    forward_s, backward_s, optimizer_s, *ready_s = (
        median(times) for times in zip(*runs, strict=True)
    )
    return StepProfile(
        param_bytes=[p.numel() * p.element_size() for p in params],
        ready_s=ready_s,
        forward_s=forward_s,
        optimizer_s=optimizer_s,
        backward_s=backward_s,
        name=name or type(model).__name__,
        source=f"measured on {params[0].device.type}, median of {steps} steps",
        param_names=[path for path, _ in named],
    )


class _Stopwatch:
    """Stamps of moments; on a GPU these are events, for the host runs ahead of the work."""

    def __init__(self, params: Sequence[nn.Parameter]) -> None:
        self.params = params
        self.on_gpu = params[0].is_cuda
        self.ready: dict[int, Any] = {}
        for index, parameter in enumerate(params):
            parameter.register_post_accumulate_grad_hook(partial(self._note, index))

    def _note(self, index: int, _: Tensor) -> None:
        self.ready[index] = self.stamp()

    def stamp(self) -> Any:
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        if not self.on_gpu:
            return float(end - start)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


def _one_step(
    model: nn.Module,
    batch: tuple[Any, Any],
    loss_fn: LossFunction,
    optimizer: torch.optim.Optimizer | None,
    watch: _Stopwatch,
) -> list[float]:
    """Seconds of forward, backward, optimizer; then, for each gradient, of backward so far."""
    inputs, targets = batch
    model.zero_grad()
    watch.ready.clear()
    start = watch.stamp()
    loss = loss_fn(model(inputs), targets)
    backward = watch.stamp()
    loss.backward()
    update = watch.stamp()
    if optimizer:
        optimizer.step()
    end = watch.stamp() if optimizer else update
    moments = [watch.ready.get(index, update) for index in range(len(watch.params))]
    return [
        watch.seconds(start, backward),
        watch.seconds(backward, update),
        watch.seconds(update, end),
        *(watch.seconds(backward, moment) for moment in moments),
    ]
