"""Real text without a download: Python's own reference manual, character by character.

Every CPython carries the manual's chapters as strings in `pydoc_data.topics` (that is what
`help("while")` prints). Its wording differs a little from one Python version to the next.

The batch of a step is a pure function of (seed, step). No rank has to remember where it is in
the data, the ranks need not agree on anything but the two numbers, and the global batch is the
same whether one process computes it or many share its rows.
"""

from __future__ import annotations

import hashlib
import random

import torch
from torch import Tensor


def reference_text() -> str:
    """All chapters of the reference manual that this Python carries, in alphabetical order."""
    from pydoc_data.topics import topics  # 0.7 MB: loaded when asked for

    return "\n\n".join(topics[name] for name in sorted(topics))


class CharText:
    """A text as numbers, one per character, cut into a part to train on and one held out.

    `train` and `held_out` are int64 tensors of shape (characters,); number i stands for
    `vocabulary[i]`. The held-out part is the end of the text, so no window straddles the cut.
    """

    def __init__(self, text: str, held_out_share: float = 0.1) -> None:
        if not 0 < held_out_share < 1:
            raise ValueError(f"held_out_share must lie between 0 and 1, got {held_out_share}")
        self.vocabulary = "".join(sorted(set(text)))
        numbers = self.encode(text)
        cut = int(len(text) * (1 - held_out_share))
        self.train, self.held_out = numbers[:cut], numbers[cut:]

    def encode(self, text: str) -> Tensor:
        """Characters to numbers, (len(text),) int64. KeyError for a character not in the text."""
        number = {character: i for i, character in enumerate(self.vocabulary)}
        return torch.tensor([number[character] for character in text], dtype=torch.int64)

    def decode(self, numbers: Tensor) -> str:
        """Numbers to characters, the way back from `encode`."""
        return "".join(self.vocabulary[i] for i in numbers.tolist())

    def fingerprint(self) -> str:
        """A short name that another text, or the same one cut elsewhere, does not share."""
        whole = self.decode(self.train) + "\0" + self.decode(self.held_out)
        return hashlib.sha256(whole.encode()).hexdigest()[:16]


def batch_starts(text_length: int, rows: int, length: int, seed: int, step: int) -> list[int]:
    """Where each row of the global batch of `step` starts in the text.

    A pure function of its arguments: every rank computes the same list and keeps its own rows.
    """
    random_numbers = random.Random(f"{seed}/{step}")
    return [random_numbers.randrange(text_length - length) for _ in range(rows)]


def held_out_starts(text_length: int, rows: int, length: int) -> list[int]:
    """At most `rows` starts of windows that do not overlap, spread evenly over the text."""
    windows = (text_length - 1) // length
    kept = min(rows, windows)
    return [(i * windows // kept) * length for i in range(kept)]


def cut_rows(numbers: Tensor, starts: list[int], length: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, each (len(starts), length): the targets are one character further on."""
    rows = torch.tensor(starts, dtype=torch.int64)[:, None] + torch.arange(length + 1)
    windows = numbers[rows]
    return windows[:, :-1], windows[:, 1:]
