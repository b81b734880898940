"""Show in the caller what the ranks print: whole lines, each with its rank."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

# The start of a line that torch's C++ code logs: severity, date, time, perhaps a thread, place.
CPP_LOG = re.compile(r"^(?:\[rank\d+\]:)?\[([WE])\d{4} [\d:.]+(?: \d+)? ([^\]]+)\] ?")


@dataclass(frozen=True)
class Line:
    text: str
    warning: bool


class Output:
    """The lines of all ranks, printed as `prints` says: "ordered", "live" or "off".

    A warning is printed once, with the number of times that the ranks gave it. Everything goes
    to the caller's stdout: a block from one stream has the same text everywhere.
    """

    def __init__(self, world_size: int, prints: str) -> None:
        self.prints = prints
        self.lines: list[list[Line]] = [[] for _ in range(world_size)]
        self.shown: set[str] = set()

    def add_line(self, rank: int, text: str) -> None:
        # A progress bar draws over its line again and again: its last state is what counts.
        text = text.rstrip("\r\n").rpartition("\r")[2]
        logged = CPP_LOG.match(text)
        if logged:
            self.add_warning(rank, f"[{logged[1]} {logged[2]}] {text[logged.end() :]}")
            return
        self.lines[rank].append(Line(text, warning=False))
        if self.prints == "live":
            show(prefixed(rank, text))

    def add_warning(self, rank: int, text: str) -> None:
        self.lines[rank].append(Line(text, warning=True))
        everybody = all(Line(text, True) in lines for lines in self.lines)
        if self.prints == "live" and everybody:
            show(self.warning_once(text))

    def finish(self) -> None:
        """Print what has not been printed yet, in the order of the ranks, as one block."""
        if self.prints == "off":
            return
        block = []
        for rank, lines in enumerate(self.lines):
            for line in lines:
                if line.warning:
                    block.append(self.warning_once(line.text))
                elif self.prints == "ordered":
                    block.append(prefixed(rank, line.text))
        show("".join(block))

    def warning_once(self, text: str) -> str:
        """The warning as the first rank that gave it would print it, or nothing if it was."""
        if text in self.shown:
            return ""
        self.shown.add(text)
        warning = Line(text, True)
        count = sum(lines.count(warning) for lines in self.lines)
        first = next(rank for rank, lines in enumerate(self.lines) if warning in lines)
        return prefixed(first, f"{text} (x{count})" if count > 1 else text)

    def text(self, rank: int) -> str:
        """All that one rank printed, without the prefix."""
        return "".join(f"{line.text}\n" for line in self.lines[rank])


def prefixed(rank: int, text: str) -> str:
    return "".join(f"[rank {rank}] {line}\n" for line in text.split("\n"))


def show(text: str) -> None:
    if not text:
        return
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()
