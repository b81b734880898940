"""In which part of the training step was a collective launched?"""

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from minddp.launcher import launch
from minddp.recorder import record


def reduce_ones(numel: int) -> None:
    dist.all_reduce(torch.ones(numel))


def phases_of(step) -> list[tuple[int, str]]:
    with record() as recording:
        step()
    return [(event.numel, event.phase) for event in recording.events]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x)
        reduce_ones(2)
        return x


def one_step() -> list[tuple[int, str]]:
    """Each call has its own number of elements."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def in_hook(parameter: torch.Tensor) -> None:
        reduce_ones(3)
        torch.autograd.Variable._execution_engine.queue_callback(lambda: reduce_ones(4))

    class Step(torch.optim.SGD):
        def step(self, closure=None):
            reduce_ones(6)
            return super().step(closure)

    optimizer = Step(model.parameters(), lr=0.1)
    model.inner.bias.register_post_accumulate_grad_hook(in_hook)

    def step() -> None:
        reduce_ones(1)
        loss = model(torch.ones(2, 3)).sum()
        reduce_ones(7)
        loss.backward()
        reduce_ones(5)
        optimizer.step()
        reduce_ones(8)

    return phases_of(step)


def test_phases_of_a_step() -> None:
    expected = [
        (1, "outside"),
        (2, "forward"),
        (7, "outside"),
        (3, "backward"),
        (4, "end_of_backward"),
        (5, "after_backward"),
        (6, "optimizer"),
        (8, "outside"),
    ]
    assert launch(one_step, timeout=60) == [expected, expected]


def special_cases() -> dict[str, list[tuple[int, str]]]:
    model = Model()

    def checkpointed() -> None:
        x = torch.ones(2, 3, requires_grad=True)
        checkpoint(model, x, use_reentrant=True).sum().backward()

    def failed_forward() -> None:
        try:
            model(torch.ones(2, 5))
        except RuntimeError:
            reduce_ones(9)

    def accumulation() -> None:
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
            reduce_ones(5)

    def evaluation() -> None:
        with torch.no_grad():
            model(torch.ones(2, 3))
        reduce_ones(9)

    class ReducedBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            reduce_ones(3)
            return grad

    def own_function() -> None:
        ReducedBackward.apply(torch.ones(1, requires_grad=True)).backward()

    cases = (checkpointed, failed_forward, accumulation, evaluation, own_function)
    return {case.__name__: phases_of(case) for case in cases}


def test_special_cases() -> None:
    expected = {
        "checkpointed": [(2, "forward"), (2, "backward")],  # the forward runs again in backward
        "failed_forward": [(9, "outside")],
        "accumulation": [(2, "forward"), (5, "after_backward")] * 2,
        "evaluation": [(2, "forward"), (9, "outside")],
        "own_function": [(3, "backward")],
    }
    assert launch(special_cases, timeout=60) == [expected, expected]
