"""What a recording holds: the collectives that one rank called, and when it was computing.

Plain data that can be pickled, so that every rank's recording can travel to the parent process.
`minddp.recorder` fills it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from minddp.timeline import Span, Timeline

PHASES = {
    "forward": "in forward",
    "backward": "in backward",
    "end_of_backward": "at the end of backward",
    "after_backward": "after backward",
    "optimizer": "in optimizer.step",
    "outside": "",
}
POINT_TO_POINT = ("send", "recv")


@dataclass(frozen=True)
class Collective:
    """One call of a collective (or of send or recv) on one rank.

    op       "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all",
             "gather", "scatter", "barrier", "send" or "recv", whichever variant was called.
    numel    elements that this rank put in (recv and scatter: that it gets); nbytes in bytes.
    seq      0-based count of the calls on this rank within the recording.
    start    when it was launched (times="profiler": when its worker thread began), in seconds of
             `time.monotonic`, which all processes of a host share.
    end      when it was complete on this rank; None when unknown: not complete yet, or a send or
             recv whose `wait()` was not called from Python.
    phase    where in the training step it was launched, one of
             "forward"          inside a module's forward (buffer broadcasts, for example);
             "backward"         while autograd was still visiting nodes of the graph: more
                                gradients may come, so this call can overlap with their computation;
             "end_of_backward"  backward() has not returned, but every gradient is there (autograd
                                runs the final callbacks);
             "after_backward"   between the return of backward() and the next forward or step;
             "optimizer"        inside optimizer.step();
             "outside"          anywhere else.
    group    the ranks that take part. peer: root, destination or source, as a global rank.
    """

    op: str
    numel: int
    dtype: torch.dtype | None
    nbytes: int
    seq: int
    rank: int
    start: float
    end: float | None
    phase: str
    group: tuple[int, ...] = ()
    peer: int | None = None
    shapes: tuple[tuple[int, ...], ...] = ()

    @property
    def in_backward(self) -> bool:
        """Launched while autograd still had nodes to visit, so that it could overlap with them."""
        return self.phase == "backward"

    @property
    def size(self) -> str:
        """Size as text: "4096 float32 (16.0 KiB)"; empty for a barrier."""
        if self.dtype is None:
            return ""
        return f"{self.numel} {dtype_name(self.dtype)} ({format_bytes(self.nbytes)})"

    def __str__(self) -> str:
        arrow = {"send": "to", "recv": "from"}.get(self.op, "root")
        name = f"{self.op} #{self.seq}"
        if self.peer is not None:
            name += f" {arrow} {self.peer}"
        details = [text for text in (self.size, PHASES[self.phase]) if text]
        return f"{name}: {', '.join(details)}" if details else name


@dataclass
class Recording:
    """The collectives (`events`) and the compute spans (`spans`) of one rank."""

    rank: int = 0
    world_size: int = 1
    events: list[Collective] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    times: str = "dispatch"

    def collectives(self, op: str | None = None, phase: str | None = None) -> list[Collective]:
        """The calls in the order made: all, or those of one `op`, of one `phase`, or of both."""
        if phase is not None and phase not in PHASES:
            raise ValueError(f"phase is {phase!r}; expected one of {', '.join(PHASES)}")
        return [e for e in self.events if op in (None, e.op) and phase in (None, e.phase)]

    @property
    def count(self) -> int:
        """Number of calls."""
        return len(self.events)

    @property
    def numel(self) -> int:
        """Elements in all calls together."""
        return sum(event.numel for event in self.events)

    @property
    def nbytes(self) -> int:
        """Bytes in all calls together."""
        return sum(event.nbytes for event in self.events)

    def timeline(self) -> Timeline:
        """Compute and communication of this rank, in seconds of `time.monotonic`.

        Calls whose end is unknown are left out. One that was launched while an earlier one was in
        flight is shown from the end of that one, since it had to queue; only if it ended first,
        because the backend has several workers, do bars of the comm lane overlap. The time that
        all calls cover together is unchanged.
        """
        spans, free = list(self.spans), float("-inf")
        for event in sorted(self.events, key=lambda event: event.start):
            if event.end is None:
                continue
            start = free if event.start < free < event.end else event.start
            label = f"#{event.seq}" + (f" {format_bytes(event.nbytes)}" if event.nbytes else "")
            spans.append(Span(self.rank, "comm", start, event.end, event.op, label))
            free = max(free, event.end)
        return Timeline(spans, f"rank {self.rank}")

    def table(self) -> str:
        """All calls as aligned text; times in milliseconds since the first start."""
        head = ("#", "op", "elements", "dtype", "bytes", "launched", "start ms", "took ms")
        zero = min((event.start for event in self.events), default=0.0)
        rows = [head, *(_row(event, zero) for event in self.events)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        numbers = (0, 2, 4, 6, 7)
        lines = []
        for row in rows:
            cells = [
                text.rjust(width) if column in numbers else text.ljust(width)
                for column, (text, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        return "\n".join([f"rank {self.rank} of {self.world_size}", *lines])

    def __repr__(self) -> str:
        kinds: dict[str, int] = {}
        for event in self.events:
            kinds[event.op] = kinds.get(event.op, 0) + 1
        counts = ", ".join(f"{count} {op}" for op, count in kinds.items()) or "no collectives"
        return (
            f"<Recording of rank {self.rank} of {self.world_size}: {counts}, "
            f"{format_bytes(self.nbytes)}>"
        )


def _row(event: Collective, zero: float) -> tuple[str, ...]:
    took = "-" if event.end is None else f"{(event.end - event.start) * 1e3:.2f}"
    return (
        str(event.seq),
        event.op if event.peer is None else f"{event.op} ({event.peer})",
        str(event.numel),
        dtype_name(event.dtype) if event.dtype else "-",
        str(event.nbytes),
        PHASES[event.phase] or "-",
        f"{(event.start - zero) * 1e3:.2f}",
        took,
    )


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def format_bytes(count: float) -> str:
    """Bytes for people: "512 B", "16.0 KiB", "25.0 MiB"."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} GiB"
