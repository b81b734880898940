"""The visual language of every picture in the course.

One colour per rank, one hatch for communication, time from left to right, exposed communication
shaded red. The colours are told apart by people who confuse red and green or blue and yellow (most
are Okabe and Ito's, 2008), and no rank is red: red always means time that is lost.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

RANK_COLORS = (
    "#0072B2",  # blue
    "#E69F00",  # orange
    "#009E73",  # green
    "#CC79A7",  # pink
    "#56B4E9",  # sky
    "#8C6D31",  # brown
    "#5E4FA2",  # violet
    "#8A9A2B",  # olive
)
EXPOSED = "#D7263D"
EXPOSED_ALPHA = 0.22
HATCH = "//////"
INK = "#222222"
FAINT = "#767676"
GRID = "#E4E4E4"

# How far a rank's colour is mixed with white (positive) or black (negative) for a kind of work.
TINTS = {"forward": 0.55, "backward": 0.0, "optimizer": -0.35, "other": 0.82}
COMM_TINT = 0.75  # under the hatch
NARROW_COMM_TINT = 0.4  # of bars too narrow for one

WIDTH = 9.0  # inches, the width of a notebook's page
RC: Any = {
    "axes.edgecolor": FAINT,
    "axes.facecolor": "white",
    "axes.grid": False,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.dpi": 100,
    "figure.facecolor": "white",
    "font.family": "sans-serif",
    "font.size": 9,
    "hatch.linewidth": 0.8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "savefig.dpi": 150,
    "text.color": INK,
    "xtick.color": FAINT,
    "xtick.labelsize": 8,
    "ytick.color": FAINT,
    "ytick.labelsize": 8,
}


def rank_color(rank: int) -> str:
    """The colour of a rank, as "#rrggbb"; from rank 8 on they repeat."""
    return RANK_COLORS[rank % len(RANK_COLORS)]


def tint(color: str, amount: float) -> str:
    """Mix a colour with white (amount 0 to 1) or with black (0 to -1)."""
    target = 1.0 if amount >= 0 else 0.0
    share = abs(amount)
    red, green, blue = (part + (target - part) * share for part in to_rgb(color))
    return str(to_hex((red, green, blue)))


def compute_color(color: str, kind: str) -> str:
    """The shade of a rank's colour for "forward", "backward", "optimizer" or anything else."""
    return tint(color, TINTS.get(kind, TINTS["other"]))


def ink_on(color: str) -> str:
    """White or black, whichever reads better on `color`."""
    red, green, blue = to_rgb(color)
    return "white" if 0.30 * red + 0.59 * green + 0.11 * blue < 0.55 else INK


@contextmanager
def style() -> Iterator[None]:
    """Draw in the course's style inside this block, and as before after it."""
    with matplotlib.rc_context(RC):
        yield


class Picture(Figure):
    """A figure that shows itself in a notebook and is named by what it shows.

    It is not known to pyplot: nothing is shown twice, nothing has to be closed, and its text in a
    stored notebook is the same in every run.
    """

    def __init__(self, name: str, height: float, width: float = WIDTH) -> None:
        super().__init__(figsize=(width, height))
        self.name = name
        self.agg = FigureCanvasAgg(self)

    def __repr__(self) -> str:
        return f"<picture: {self.name}>"

    __str__ = __repr__

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        with style():
            self.savefig(buffer, format="png", dpi=2 * self.dpi)
        return buffer.getvalue()
