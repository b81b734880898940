"""Random training programs as plain data, and what a rank does with one.

A rank runs a program on a wrapped model and, beside it, the same program in one process on the
whole batch: the micro-batches of all ranks, each with its loss divided by their number. After every
step it compares.
"""

from __future__ import annotations

import copy
import textwrap
from contextlib import nullcontext
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from minddp.ddp import DDP_BACKENDS
from minddp.ddp.base import BaseDDP

from .comparing import compare, gradients, require_same_on_all_ranks, tolerance
from .layers import WIDTH
from .trees import Net, Tree

HOOKS = {"allreduce": allreduce_hook}
SAMPLES = 3  # per rank and forward
RATE = 1e-3  # of learning; small, so that no model blows up


@dataclass(frozen=True)
class Micro:
    """Some forwards and backwards on every rank.

    routes     what each rank passes to forward; None: that rank leaves this one out.
    sync       False: inside `no_sync`.
    forwards   forwards before the first backward.
    backwards  backwards through the same graph, with `retain_graph`.
    together   one backward through the sum of the losses, or one for each loss.
    """

    routes: tuple[int | None, ...]
    sync: bool = True
    forwards: int = 1
    backwards: int = 1
    together: bool = True


@dataclass(frozen=True)
class Step:
    """Micro-batches, then a step of the optimizer.

    before  "freeze" the first trainable parameter, "unfreeze" all, or "" for neither.
    zero    what happens to gradients after the step: "none", "zeros" or "keep".
    """

    micros: tuple[Micro, ...]
    before: str = ""
    zero: str = "none"


@dataclass(frozen=True)
class Program:
    """A model, a class to wrap it, and what to do with it.

    options  as the class takes them; but a `comm_hook` is given as a key of `HOOKS`.
    """

    tree: Tree
    steps: tuple[Step, ...]
    rung: str = "naive"
    options: dict[str, Any] = field(default_factory=dict)
    optimizer: str = "sgd"
    seed: int = 0


def as_text(value: Any) -> str:
    """What to type for it: only the arguments that are not the default."""
    if isinstance(value, tuple):
        return f"({', '.join(map(as_text, value))}{',' * (len(value) == 1)})"
    if not is_dataclass(value):
        return repr(value)
    plain = type(value)
    arguments = [
        f"{part.name}={as_text(getattr(value, part.name))}"
        for part in fields(plain)
        if part.default is MISSING or getattr(value, part.name) != part.default
    ]
    if isinstance(value, (Program, Step)):
        lines = textwrap.indent("".join(f"\n{argument}," for argument in arguments), "    ")
        return f"{plain.__name__}({lines}\n)"
    return f"{plain.__name__}({', '.join(arguments)})"


def run_program(program: Program) -> None:
    """In a rank: run the program, and raise `Difference` at the first wrong number."""
    rank = dist.get_rank()
    torch.manual_seed(program.seed)
    reference = Net(program.tree)
    if not any(p.requires_grad for p in reference.parameters()):
        return  # wrapping refuses it
    model = copy.deepcopy(reference)
    scramble(model, rank)
    optimizers = [make_optimizers(program.optimizer, net) for net in (model, reference)]
    options = dict(program.options)
    if "comm_hook" in options:
        options["comm_hook"] = HOOKS[options["comm_hook"]]
    ddp = DDP_BACKENDS[program.rung](model, **options)
    for number, step in enumerate(program.steps):
        for net in (model, reference):
            change_frozen(net, step.before)
        train(ddp, step, (program.seed, number))
        train_reference(reference, step, (program.seed, number))
        where = f"step {number}, gradients"
        compare(where, gradients(model), gradients(reference), tolerance(model))
        require_same_on_all_ranks(where, gradients(model))
        for pair in optimizers:
            for optimizer in pair:
                optimizer.step()
                if step.zero != "keep":
                    optimizer.zero_grad(set_to_none=step.zero == "none")
        where = f"step {number}, weights"
        compare(
            where,
            dict(model.named_parameters()),
            dict(reference.named_parameters()),
            tolerance(model),
        )
        require_same_on_all_ranks(where, model.state_dict())


def scramble(model: nn.Module, rank: int) -> None:
    """Other weights on every rank but the first: wrapping must make them equal."""
    for tensor in model.state_dict().values():
        tensor.add_(rank)


def make_optimizers(name: str, net: nn.Module) -> list[torch.optim.Optimizer]:
    """Built before wrapping, over all parameters, frozen ones too."""
    sparse = [m.weight for m in net.modules() if isinstance(m, nn.Embedding)]
    dense = [p for p in net.parameters() if not any(p is other for other in sparse)]
    made: list[torch.optim.Optimizer] = [torch.optim.SGD(sparse, RATE)] if sparse else []
    if dense and name == "adam":
        # A large eps: Adam would blow rounding errors of gradients near zero up to whole steps.
        made.append(torch.optim.Adam(dense, RATE, eps=1e-2))
    elif dense:
        made.append(torch.optim.SGD(dense, RATE, momentum=0.5, weight_decay=0.1))
    return made


def change_frozen(net: nn.Module, what: str) -> None:
    trainable = [p for p in net.parameters() if p.requires_grad]
    if what == "freeze" and len(trainable) > 1:
        trainable[0].requires_grad_(False)
    elif what == "unfreeze":
        net.requires_grad_(True)


# ---------------------------------------------------------------------- training


def train(ddp: BaseDDP, step: Step, seed: tuple[int, int]) -> None:
    """All micro-batches of a step on this rank."""
    rank = dist.get_rank()
    for place, micro in enumerate(step.micros):
        route = micro.routes[rank]
        if route is None:
            continue
        with nullcontext() if micro.sync else ddp.no_sync():
            run_micro(ddp, micro, route, (*seed, place, rank), divisor=1)
    if not step.micros[-1].sync:
        ddp.reduce_gradients()


def train_reference(net: nn.Module, step: Step, seed: tuple[int, int]) -> None:
    """The same step on the whole batch: what all ranks do, in one process."""
    world_size = dist.get_world_size()
    for place, micro in enumerate(step.micros):
        for rank in range(world_size):
            route = micro.routes[rank]
            if route is not None:
                run_micro(net, micro, route, (*seed, place, rank), divisor=world_size)


def run_micro(
    net: nn.Module, micro: Micro, route: int, seed: tuple[int, ...], divisor: int
) -> None:
    losses = []
    for number in range(micro.forwards):
        x = batch((*seed, number))
        losses.append((net(x, route) ** 2).mean() / divisor)
    if micro.together:
        losses = [torch.stack(losses).sum()]
    for number in range(micro.backwards):
        for loss in losses:
            loss.backward(retain_graph=number < micro.backwards - 1)


def batch(seed: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(hash(seed) % 2**31)
    x = torch.randn(SAMPLES, WIDTH, dtype=torch.float64, generator=generator)
    return x.requires_grad_()  # so that a route without any parameter has a backward too
