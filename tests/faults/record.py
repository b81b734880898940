"""One case: a small program for every rank, and the answer it must give.

A case is a function `case(wrap, rank, world_size) -> dict` of plain values. `wrap(module,
**options)` is one class of the ladder, or torch's own, so the same program runs on all of them.
The decorator writes the right answer beside the program; all cases together are `CASES`.

Unless a case says otherwise, rank r feeds x = 2r + 1 to one weight: the local gradients are
1, 3, 5, ... and their average over n ranks is n.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeGuard

Program = Callable[..., dict]
Answer = Callable[[int, int], dict]  # (world_size, rank) -> what that rank must return


@dataclass(frozen=True)
class Case:
    """One program with its right answer: values (`right`), or an error on every rank (`raises`).

    Where a case has both, an error is due on the ranks for which `right` gives None.
    """

    record: str
    title: str
    program: Program
    wrong: str  # what a wrong answer looks like
    right: Answer | None = None
    raises: tuple[str, ...] = ()  # patterns; the error must match each of them
    not_for: dict[str, str] = field(default_factory=dict)  # trait of a rung -> why not
    torch_right: Answer | None = None  # where torch documents another rule than ours
    tolerance: float = 1e-5  # relative
    compiles: bool = False  # needs torch.compile, which takes seconds to start

    @property
    def name(self) -> str:
        return f"{self.record}-{self.program.__name__}"

    def judge(self, world_size: int, outcomes: list[Outcome], torch: bool = False) -> str | None:
        """None when every rank answered as it must, else one sentence per rank that did not."""
        faults = [
            f"rank {rank}: {fault}"
            for rank, outcome in enumerate(outcomes)
            if (fault := self._fault(world_size, rank, outcome, torch))
        ]
        return "\n".join(faults) or None

    def _fault(self, world_size: int, rank: int, outcome: Outcome, torch: bool) -> str | None:
        if outcome.died:
            return f"the launch ended:\n{outcome.error}"
        answer = self.torch_right if torch and self.torch_right else self.right
        expected = answer(world_size, rank) if answer else None
        if expected is None:
            return self._wrong_error(outcome)
        if outcome.error is not None:
            return f"raised\n{outcome.error}\n{outcome.traceback}"
        if same(outcome.value, expected, self.tolerance):
            return None
        return f"returned {outcome.value}, right is {expected}"

    def _wrong_error(self, outcome: Outcome) -> str | None:
        if outcome.error is None:
            return f"returned {outcome.value} where an error was due"
        missing = [p for p in self.raises if not re.search(p, outcome.error, re.DOTALL)]
        return f"its error does not say {missing}:\n{outcome.error}" if missing else None


@dataclass(frozen=True)
class Outcome:
    """What one rank made of one case."""

    value: dict | None = None
    error: str | None = None  # type and message
    traceback: str = ""
    died: bool = False  # the error is the launcher's: some rank was killed, or never answered


CASES: list[Case] = []


def case(record: str, title: str, *, wrong: str, **rest) -> Callable[[Program], Program]:
    """Enter the decorated program into `CASES`."""

    def enter(program: Program) -> Program:
        CASES.append(Case(record, title, program, wrong, **rest))
        return program

    return enter


def same(found: object, expected: object, tolerance: float = 1e-5) -> bool:
    """Equal, with room for rounding in numbers; keys, lengths and other values exactly."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return found.keys() == expected.keys() and all(
            same(found[key], expected[key], tolerance) for key in expected
        )
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(
            same(*pair, tolerance) for pair in zip(found, expected, strict=True)
        )
    if is_number(expected) and is_number(found):
        return math.isclose(found, expected, rel_tol=tolerance, abs_tol=1e-12)
    return type(found) is type(expected) and found == expected


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
