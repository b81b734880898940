"""The ring all-reduce, step by step: who holds which parts of which chunk."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from minddp.cost_model import require, require_count
from minddp.lab import style

Parts = frozenset[int]  # the ranks whose contribution a chunk contains


@dataclass(frozen=True)
class Message:
    """In this step `source` sends `chunk` to its right neighbour; `parts` are in it."""

    source: int
    target: int
    chunk: int
    parts: Parts


def ring_messages(world_size: int, step: int) -> list[Message]:
    """What is sent in a step (from 0) of `minddp.ring.ring_all_reduce`; one message a rank.

    Steps 0 to n - 2 reduce-scatter, steps n - 1 to 2n - 3 all-gather.
    """
    n = world_size
    _check_step(n, step, last=2 * (n - 1) - 1)
    messages = []
    for rank in range(n):
        if step < n - 1:  # a chunk has passed as many ranks as there were steps
            chunk, parts = (rank - 1 - step) % n, {(rank - k) % n for k in range(step + 1)}
        else:
            chunk, parts = (rank - (step - (n - 1))) % n, set(range(n))
        messages.append(Message(rank, (rank + 1) % n, chunk, frozenset(parts)))
    return messages


def ring_state(world_size: int, steps_done: int) -> list[list[Parts]]:
    """Which contributions chunk c on rank r contains, as `state[r][c]`, after so many steps."""
    _check_step(world_size, steps_done, last=2 * (world_size - 1))
    state = [[frozenset({rank})] * world_size for rank in range(world_size)]
    for step in range(steps_done):
        for message in ring_messages(world_size, step):
            there = state[message.target][message.chunk]
            adds = step < world_size - 1
            state[message.target][message.chunk] = message.parts | (there if adds else frozenset())
    return state


def _check_step(world_size: int, step: int, last: int) -> None:
    require_count("world_size", world_size)
    require(0 <= step <= last, "step", f"in 0..{last} for {world_size} ranks", step)


def ring_picture(world_size: int, steps_done: int) -> style.Picture:
    """One row a rank, one box a chunk, one coloured strip a contribution; what just came, framed.

    Raises ValueError for a step that does not exist.
    """
    n = world_size
    state = ring_state(n, steps_done)
    came = ring_messages(n, steps_done - 1) if steps_done else []
    phase = "start" if not steps_done else "reduce-scatter" if steps_done < n else "all-gather"
    title = f"after step {steps_done} of {2 * (n - 1)}: {phase}"
    with style.style():
        picture = style.Picture(f"ring of {n} ranks {title}", height=0.7 + 0.5 * n)
        ax = picture.add_axes((0.10, 0.02, 0.88, 1 - 0.62 / (0.7 + 0.5 * n)))
        ax.set_xlim(0, n)
        ax.set_ylim(n, 0)
        ax.set_axis_off()
        ax.set_title(title, loc="left", fontweight="bold")
        for rank, chunks in enumerate(state):
            ax.text(-0.06, rank + 0.5, f"rank {rank}", ha="right", va="center")
            for chunk, parts in enumerate(chunks):
                _draw_chunk(ax, rank, chunk, parts, n)
        for message in came:
            corner = (message.chunk + 0.05, message.target + 0.12)
            frame = Rectangle(corner, 0.9, 0.76, fill=False, edgecolor=style.INK, linewidth=2.0)
            frame.set_gid("came")
            ax.add_patch(frame)
    return picture


def _draw_chunk(ax: Axes, rank: int, chunk: int, parts: Parts, n: int) -> None:
    width = 0.9 / n
    for part in range(n):
        color = style.rank_color(part) if part in parts else style.GRID
        corner = (chunk + 0.05 + part * width, rank + 0.12)
        gid = f"rank {rank} chunk {chunk}" if part in parts else None
        ax.add_patch(Rectangle(corner, width, 0.76, color=color, linewidth=0, gid=gid))
