"""Training when ranks have unequal numbers of batches.

A rank that has run out of data would leave the others waiting in their next collective. Inside
`join` each rank announces every collective of the wrapper before it; a rank that has run out stays,
listens, and takes part in whatever the others do, with nothing to add, until all have run out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from minddp.ddp.base import BaseDDP

CODES = {"nothing": 0, "forward": 1, "reduce": 2, "local": 3}


class Join:
    """The state of one `join`: who still has data.

    `working` is the number of ranks that do, `source` the lowest of them: its buffers, and at the
    end its weights, are the ones that count."""

    def __init__(self, ddp: BaseDDP, divide_by_initial: bool, throw: bool) -> None:
        self.ddp = ddp
        self.divide_by_initial = divide_by_initial
        self.throw = throw
        self.working = ddp.world_size
        self.source = 0

    def announce(self, what: str) -> str:
        """Tell all ranks what this one does next, and hear what the others do.

        Args:
            what: ``"forward"``, ``"reduce"``, ``"local"`` for a forward without communication, or
                ``"nothing"`` on a rank without data.

        Returns:
            What the ranks with data do; ``"nothing"`` if none is left.

        Raises:
            RuntimeError: ranks do different things, or one has run out and `throw` is set.
        """
        answers = self._exchange(CODES[what])
        doing = {rank: code for rank, code in enumerate(answers) if code != 0}
        if self.throw and len(doing) < len(answers):
            raise RuntimeError(self._out_of_data(what, answers))
        words = {code: word for word, code in CODES.items()}
        if len(set(doing.values())) > 1:
            said = ", ".join(f"rank {rank} is at {words[code]}" for rank, code in doing.items())
            raise RuntimeError(f"ranks are at different places of the training loop: {said}")
        if not doing:
            return "nothing"
        self.working, self.source = len(doing), min(doing)
        if not self.divide_by_initial:
            self.ddp.divisor = float(self.working)
        return words[answers[self.source]]

    def _exchange(self, code: int) -> list[int]:
        device = next(self.ddp.module.parameters()).device
        said = torch.zeros(self.ddp.world_size, dtype=torch.int64, device=device)
        said[self.ddp.rank] = code
        dist.all_reduce(said, group=self.ddp.process_group)
        answers: list[int] = said.tolist()
        return answers

    def _out_of_data(self, what: str, answers: list[int]) -> str:
        if what == "nothing":
            return f"Rank {self.ddp.rank} exhausted all inputs."
        exhausted = [rank for rank, code in enumerate(answers) if code == 0]
        return (
            "Detected at least one rank that exhausted inputs. Throwing across all ranks. "
            f"(Out of data: rank {', '.join(map(str, exhausted))}.)"
        )

    def accompany(self) -> None:
        """Follow the ranks that still have data until none has, then take over their weights."""
        while (doing := self.announce("nothing")) != "nothing":
            if doing == "forward":
                self.ddp._synchronise_buffers()
            elif doing == "reduce":
                self.ddp.step += 1
                self.ddp._average_everything(silent=True)
        self.ddp._copy_from(self.source)


@contextmanager
def joining(
    ddp: BaseDDP,
    divide_by_initial_world_size: bool,
    enable: bool,
    throw_on_early_termination: bool,
) -> Iterator[None]:
    """Run a training loop with any number of batches per rank; all leave together.

    Args:
        ddp: the wrapped model.
        divide_by_initial_world_size: what a sum over ranks is divided by. True: the world size,
            even when some ranks have run out: every batch weighs the same throughout. False: the
            number of ranks that still have data.
        enable: False makes this a no-op, for comparison.
        throw_on_early_termination: raise on all ranks as soon as one has run out.
    """
    if not enable:
        yield
        return
    ddp._join = Join(ddp, divide_by_initial_world_size, throw_on_early_termination)
    try:
        yield
        ddp._join.accompany()
    finally:
        ddp._join = None
        ddp.divisor = float(ddp.world_size)
