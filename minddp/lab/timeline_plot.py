"""Draw timelines: per rank one lane for compute and one for communication, on one time axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Union

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from minddp.lab import style
from minddp.lab.timeline_rows import RANK_HEIGHT, draw_rank
from minddp.recording import Recording
from minddp.timeline import Timeline

Drawable = Union[Recording, Timeline, Iterable[Recording]]  # noqa: UP007 - used at run time

# Inches: the y axis is in inches and runs downwards, so that rows look the same in every figure.
_HEADING, _BETWEEN_RANKS, _BETWEEN_PANELS = 0.27, 0.14, 0.18
_LEFT, _RIGHT, _TOP, _BOTTOM = 1.25, 0.20, 0.06, 0.48
_LEGEND = 0.30


def timeline(
    x: Drawable | Mapping[str, Drawable],
    ax: Axes | None = None,
    title: str | None = None,
    legend: bool = True,
) -> Figure:
    """Draw who computed and who communicated when; returns the figure.

    x is a Recording, a list of Recordings (one per rank), a Timeline (recorded or simulated), or a
    dict of any of these: its entries are drawn under one another, each from its own time zero, on
    one shared axis, so that their lengths compare. Time runs in milliseconds. Communication that
    no computation of the same rank hides is shaded red.

    Without `ax` a new figure of the right height is made. Raises TypeError for another `x`, and
    ValueError where there is nothing to draw.
    """
    panels = _panels(x)
    for label, panel in panels.items():
        if not panel.spans:
            raise ValueError(f"nothing to draw: the timeline {label!r} has no spans")
    if title is None and not isinstance(x, Mapping):
        title = next(iter(panels.values())).title
    with style.style():
        if ax is None:
            ax = _new_axes(panels, legend)
        _draw_panels(ax, panels, title or "")
        _draw_time_axis(ax)
        if legend:
            _draw_legend(ax, panels.values())
    figure: Figure = ax.figure.figure  # of a sub-figure: the whole
    return figure


def _panels(x: Any) -> dict[str, Timeline]:
    if isinstance(x, Mapping):
        if not x:
            raise ValueError("nothing to draw: the dict of timelines is empty")
        return {str(label): _as_timeline(value) for label, value in x.items()}
    return {"": _as_timeline(x)}


def _as_timeline(x: Any) -> Timeline:
    if isinstance(x, Timeline):
        return x.shifted()
    if isinstance(x, Recording):
        return x.timeline().shifted()
    recordings = list(x) if isinstance(x, Iterable) else [x]
    for recording in recordings:
        if not isinstance(recording, Recording):
            raise TypeError(
                f"cannot draw a {type(recording).__name__}; expected a Recording, a list of "
                "Recordings, a Timeline, or a dict of those"
            )
    return Timeline.from_recordings(recordings)


def _height(panels: Mapping[str, Timeline]) -> float:
    """Inches that the rows of all panels take."""
    rows = sum(_HEADING + _rows_height(panel) for panel in panels.values())
    return rows + _BETWEEN_PANELS * (len(panels) - 1)


def _rows_height(panel: Timeline) -> float:
    return len(panel.ranks) * (RANK_HEIGHT + _BETWEEN_RANKS)


def _new_axes(panels: Mapping[str, Timeline], legend: bool) -> Axes:
    top, rows = _TOP + (_LEGEND if legend else 0.0), _height(panels)
    height = top + rows + _BOTTOM
    labels = ", ".join(label for label in panels if label)
    ranks = max(len(panel.ranks) for panel in panels.values())
    name = f"timeline of {ranks} rank{'s' if ranks != 1 else ''}"
    figure = style.Picture(f"{name}: {labels}" if labels else name, height)
    width = style.WIDTH
    box = (_LEFT / width, _BOTTOM / height, 1 - (_LEFT + _RIGHT) / width, rows / height)
    return figure.add_axes(box)


def _draw_panels(ax: Axes, panels: Mapping[str, Timeline], title: str) -> None:
    ax.set_xlim(0, 1.01e3 * max(panel.duration for panel in panels.values()))
    ax.set_ylim(_height(panels), 0)
    y = 0.0
    for label, panel in panels.items():
        _draw_heading(ax, y, label or title, panel)
        y += _HEADING
        for rank in panel.ranks:
            draw_rank(ax, y, panel, rank)
            y += RANK_HEIGHT + _BETWEEN_RANKS
        y += _BETWEEN_PANELS
    if len(panels) > 1 and title:
        ax.set_title(title, loc="left", fontweight="bold", pad=14)


def _draw_heading(ax: Axes, y: float, label: str, panel: Timeline) -> None:
    """The name of the panel, and behind it how long it took and how much was hidden."""
    over_grid = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
    heading = ax.annotate(
        label,
        (0.0, y + _HEADING / 2),
        xycoords=ax.get_yaxis_transform(),
        va="center",
        fontsize=9.5,
        fontweight="bold",
        bbox=over_grid,
        annotation_clip=False,
    )
    shares = [panel.overlap_fraction(rank) for rank in panel.ranks if panel.busy(rank, "comm")]
    milliseconds = panel.duration * 1e3
    numbers = f"{milliseconds:.0f} ms" if milliseconds >= 100 else f"{milliseconds:.3g} ms"
    if shares:
        numbers += f", {sum(shares) / len(shares):.0%} of communication hidden"
    ax.annotate(
        numbers,
        (1.0, 0.5) if label else (0.0, 0.5),
        xycoords=heading,
        xytext=(8 if label else 0, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
        color=style.FAINT,
        bbox=over_grid,
        annotation_clip=False,
    )


def _draw_time_axis(ax: Axes) -> None:
    ax.set_xlabel("time (ms)")
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x", color=style.GRID, linewidth=0.7)
    ax.set_axisbelow(True)


def _draw_legend(ax: Axes, panels: Iterable[Timeline]) -> None:
    """Above the axes, in grey: the colours are the ranks', the shades and the hatch are meant."""
    spans = [span for panel in panels for span in panel.spans]
    kinds = {span.kind for span in spans if span.lane == "compute"}
    handles = [
        Patch(facecolor=style.compute_color(style.FAINT, kind), label=kind)
        for kind in style.TINTS
        if kind in kinds
    ]
    if any(span.lane == "comm" for span in spans):
        face = style.tint(style.FAINT, style.COMM_TINT)
        handles += [
            Patch(facecolor=face, edgecolor=style.FAINT, hatch=style.HATCH, label="communication"),
            Patch(facecolor=style.EXPOSED, alpha=style.EXPOSED_ALPHA, label="exposed"),
        ]
    ax.legend(
        handles=handles,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=len(handles),
        borderaxespad=0.2,
        columnspacing=1.2,
        handlelength=1.6,
    )
