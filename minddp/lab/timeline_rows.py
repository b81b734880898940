"""The rows of one rank in a timeline: bars, red shading, and the labels that fit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import TextToPath

from minddp.lab import style
from minddp.timeline import Interval, Span, Timeline

# Inches.
_COMPUTE, _COMM, _BETWEEN_LANES = 0.24, 0.18, 0.03
RANK_HEIGHT = _COMPUTE + _BETWEEN_LANES + _COMM

_FONT = FontProperties(family="sans-serif", size=6.5)
_PADDING = 2.5  # pixels left free on each side of a label
_HATCHED_FROM = 9.0  # pixels: in a narrower bar a hatch is noise
_EDGED_FROM = 3.0  # pixels: in a narrower bar an edge is all there is
_JOINED_BELOW = 2.0  # pixels: a smaller gap between red areas is not drawn


def draw_rank(ax: Axes, y: float, timeline: Timeline, rank: int) -> None:
    """Draw the two lanes of `rank` with the upper edge at `y`. The x axis (ms) must be set."""
    color = style.rank_color(rank)
    for start, end in _joined(ax, timeline.exposed(rank)):
        _rectangle(ax, start, end, y - 0.02, RANK_HEIGHT + 0.04, f"rank {rank} exposed").set(
            facecolor=style.EXPOSED, alpha=style.EXPOSED_ALPHA, zorder=1
        )
    lanes = (("compute", y, _COMPUTE), ("comm", y + _COMPUTE + _BETWEEN_LANES, _COMM))
    for lane, top, height in lanes:
        _lane_name(ax, lane, top + height / 2)
        taken = float("-inf")
        for span in timeline.of(rank, lane):
            face = _draw_bar(ax, span, top, height, color)
            taken = _draw_label(ax, span, top + height / 2, face, taken)
    ax.annotate(
        f"rank {rank}",
        (0, y + RANK_HEIGHT / 2),
        xycoords=ax.get_yaxis_transform(),
        xytext=(-82, 0),
        textcoords="offset points",
        va="center",
        color=style.tint(color, -0.2),
        fontweight="bold",
        annotation_clip=False,
    )


def _lane_name(ax: Axes, lane: str, y: float) -> None:
    ax.annotate(
        lane,
        (0, y),
        xycoords=ax.get_yaxis_transform(),
        xytext=(-5, 0),
        textcoords="offset points",
        va="center",
        ha="right",
        fontsize=7,
        color=style.FAINT,
        annotation_clip=False,
    )


def _rectangle(ax: Axes, start: float, end: float, y: float, height: float, gid: str) -> Rectangle:
    """A bar from `start` to `end` (seconds), named `gid`."""
    bar = Rectangle((start * 1e3, y), (end - start) * 1e3, height, linewidth=0, gid=gid)
    bar.set_snap(False)  # rounded to whole pixels, many narrow bars make false stripes
    ax.add_patch(bar)
    return bar


def _draw_bar(ax: Axes, span: Span, y: float, height: float, color: str) -> str:
    """Returns the colour of the bar's face."""
    bar = _rectangle(ax, span.start, span.end, y, height, f"rank {span.rank} {span.lane}")
    if span.lane == "compute":
        face = style.compute_color(color, span.kind)
        bar.set(facecolor=face, zorder=3)
        return face
    pixels = _pixels(ax, span.end) - _pixels(ax, span.start)
    hatched = pixels >= _HATCHED_FROM
    face = style.tint(color, style.COMM_TINT if hatched else style.NARROW_COMM_TINT)
    bar.set(facecolor=face, edgecolor=color, zorder=3)
    if hatched:
        bar.set(hatch=style.HATCH, linewidth=0.6)
    elif pixels >= _EDGED_FROM:
        bar.set(edgecolor="white", linewidth=0.5)
    return face


def _draw_label(ax: Axes, span: Span, y: float, face: str, taken: float) -> float:
    """Write the longest text that fits into the bar right of `taken` (pixels).

    Returns where the next label of the lane may begin.
    """
    left = max(_pixels(ax, span.start), taken)
    right = _pixels(ax, span.end)
    text = next((t for t in _texts(span) if _text_width(ax, t) + 2 * _PADDING <= right - left), "")
    if not text:
        return taken
    middle = ax.transData.inverted().transform(((left + right) / 2, 0))[0]
    options: dict[str, Any] = {"color": style.ink_on(face)}
    if span.lane == "comm":  # a hatch lies behind the text
        options["bbox"] = {"facecolor": face, "edgecolor": "none", "pad": 0.6}
    ax.text(
        middle,
        y,
        text,
        ha="center",
        va="center_baseline",
        fontproperties=_FONT,
        zorder=4,
        **options,
    )
    return right


def _texts(span: Span) -> Iterator[str]:
    """What a bar could say, the longest first."""
    if span.lane == "compute":
        if span.kind != "other":
            yield span.label or span.kind
        return
    words = span.label.split()
    yield f"{span.kind} {span.label}".strip()
    if words:
        yield span.label
        yield words[0] if words[0].startswith("#") else words[-1]


def _joined(ax: Axes, intervals: list[Interval]) -> list[Interval]:
    """The intervals without gaps too small to see."""
    joined: list[Interval] = []
    for start, end in intervals:
        if joined and _pixels(ax, start) - _pixels(ax, joined[-1][1]) < _JOINED_BELOW:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _pixels(ax: Axes, seconds: float) -> float:
    return float(ax.transData.transform((seconds * 1e3, 0))[0])


def _text_width(ax: Axes, text: str) -> float:
    """Pixels that `text` takes in the labels' font."""
    return _text_points(text) * float(ax.figure.dpi) / 72


@cache
def _text_points(text: str) -> float:
    return float(TextToPath().get_text_width_height_descent(text, _FONT, ismath=False)[0])
