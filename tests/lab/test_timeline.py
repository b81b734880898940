"""What the timeline picture draws: read from its artists, never from pixels."""

import io
import itertools

import matplotlib
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minddp import lab
from minddp.lab import style
from minddp.recording import Recording
from minddp.timeline import Span, Timeline


def step(ranks: int = 2, calls: int = 3, overlap: bool = False, title: str = "") -> Timeline:
    """Forward 4 ms, backward 10 ms, `calls` all-reduces of 9 ms in all, optimizer 2 ms."""
    spans = []
    for rank in range(ranks):
        start = 0.005 if overlap else 0.014
        each = 0.009 / calls
        spans += [
            Span(rank, "compute", 0.0, 0.004, "forward"),
            Span(rank, "compute", 0.004, 0.014, "backward"),
            Span(rank, "compute", 0.023, 0.025, "optimizer"),
        ]
        spans += [
            Span(
                rank,
                "comm",
                start + k * each,
                start + (k + 0.95) * each,
                "all_reduce",
                f"#{k} 1 MiB",
            )
            for k in range(calls)
        ]
    return Timeline(spans, title)


def bars(figure: Figure, name: str) -> list[Rectangle]:
    return [patch for patch in figure.axes[0].patches if patch.get_gid() == name]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_one_bar_a_span_in_its_ranks_colour(ranks: int) -> None:
    figure = lab.timeline(step(ranks))
    for rank in range(ranks):
        color = style.rank_color(rank)
        compute, comm = bars(figure, f"rank {rank} compute"), bars(figure, f"rank {rank} comm")
        assert len(compute) == 3 and len(comm) == 3
        assert [to_hex(bar.get_facecolor()).lower() for bar in compute] == [
            style.tint(color, style.TINTS[kind]) for kind in ("forward", "backward", "optimizer")
        ]
        assert {to_hex(bar.get_edgecolor()) for bar in comm} == {color.lower()}
        assert all(bar.get_hatch() == style.HATCH for bar in comm)
        assert not any(bar.get_hatch() for bar in compute)
        assert f"rank {rank}" in texts(figure)
    assert f"rank {ranks}" not in texts(figure)


def test_bars_stand_where_the_spans_are_in_milliseconds() -> None:
    shifted = Timeline([Span(0, "compute", 100.0, 100.004, "forward")])
    (bar,) = bars(lab.timeline(shifted), "rank 0 compute")
    assert (bar.get_x(), bar.get_width()) == pytest.approx((0.0, 4.0))


def test_lanes_and_ranks_lie_under_one_another() -> None:
    figure = lab.timeline(step(2))
    names = [f"rank {rank} {lane}" for rank in (0, 1) for lane in ("compute", "comm")]
    tops = [bars(figure, name)[0].get_y() for name in names]
    bottoms = [bars(figure, name)[0].get_y() + bars(figure, name)[0].get_height() for name in names]
    assert figure.axes[0].yaxis_inverted()
    assert all(bottom < top for bottom, top in zip(bottoms, tops[1:], strict=False))


def test_only_exposed_communication_is_red() -> None:
    exposed = bars(lab.timeline(step(1, calls=1)), "rank 0 exposed")
    assert [(b.get_x(), b.get_width()) for b in exposed] == [pytest.approx((14.0, 9 * 0.95))]
    assert to_hex(exposed[0].get_facecolor()).lower() == style.EXPOSED.lower()
    assert bars(lab.timeline(step(1, overlap=True)), "rank 0 exposed") == []


@pytest.mark.parametrize(("ranks", "calls"), [(1, 3), (2, 3), (4, 3), (2, 30), (2, 200)])
def test_labels_lie_in_their_bars_and_do_not_overlap(ranks: int, calls: int) -> None:
    figure = lab.timeline({"exposed": step(ranks, calls), "overlapped": step(ranks, calls, True)})
    figure.canvas.draw()
    boxes = {
        text: text.get_window_extent() for text in figure.axes[0].texts if text.get_text().strip()
    }
    if figure.axes[0].get_legend():
        boxes["legend"] = figure.axes[0].get_legend().get_window_extent()
    for (one, a), (other, b) in itertools.combinations(boxes.items(), 2):
        assert not a.overlaps(b), f"{one} overlaps {other}"
    for text, box in boxes.items():
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1, f"{text} leaves the figure"
    if calls == 3:
        assert texts(figure).count("#2 1 MiB") == 2 * ranks
    inside = [bar.get_window_extent() for bar in figure.axes[0].patches if "com" in bar.get_gid()]
    for text, box in boxes.items():
        if text != "legend" and text.get_text() in ("forward", "backward", "#0 1 MiB"):
            assert any(b.x0 <= box.x0 and box.x1 <= b.x1 for b in inside)


def test_200_calls_get_no_labels_and_3_get_full_ones() -> None:
    assert [text for text in texts(lab.timeline(step(1, 200))) if "#" in text] == []
    assert "#1 1 MiB" in texts(lab.timeline(step(1, 3)))
    assert "all_reduce #0 1 MiB" in texts(lab.timeline(step(1, 1)))
    assert "#7" in texts(lab.timeline(step(1, 12)))  # too narrow for more than the number


def test_a_dict_shares_one_time_axis() -> None:
    short, long = Timeline([Span(0, "compute", 7.0, 7.001, "forward")]), step(2)
    figure = lab.timeline({"short": short, "long": long})
    (ax,) = figure.axes
    assert {"short", "long"} <= set(texts(figure))
    assert ax.get_xlim()[0] == 0 and 25 <= ax.get_xlim()[1] <= 26
    forward = bars(figure, "rank 0 compute")
    assert [forward[0].get_width(), forward[1].get_width()] == pytest.approx([1.0, 4.0])
    assert "1 ms" in texts(figure) and "25 ms, 0% of communication hidden" in texts(figure)
    assert figure.get_figheight() > lab.timeline(long).get_figheight()


def test_recordings_are_drawn() -> None:
    recordings = [
        Recording(r, 2, [], [Span(r, "compute", 9.0 + r, 11.0, "forward")]) for r in (0, 1)
    ]
    both = lab.timeline(recordings, title="two ranks")
    assert bars(both, "rank 1 compute")[0].get_x() == pytest.approx(1000.0)
    assert "two ranks" in texts(both)
    alone = lab.timeline(recordings[1])
    assert bars(alone, "rank 1 compute")[0].get_x() == pytest.approx(0.0)
    assert "rank 0" not in texts(alone)


def test_axes_of_the_caller_are_used() -> None:
    before = dict(matplotlib.rcParams)
    figure = Figure()
    canvas = figure.canvas
    ax = figure.add_subplot()
    assert isinstance(ax, Axes)
    assert lab.timeline(step(), ax=ax, legend=False) is figure
    assert figure.canvas is canvas
    assert len(figure.axes) == 1 and ax.get_legend() is None
    assert dict(matplotlib.rcParams) == before


def test_the_picture_shows_and_names_itself() -> None:
    figure = lab.timeline({"naive": step(2), "flat": step(2)})
    assert repr(figure) == "<picture: timeline of 2 ranks: naive, flat>"
    assert figure._repr_png_().startswith(b"\x89PNG")
    figure.savefig(io.BytesIO(), format="svg")


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (3, TypeError, "cannot draw a int; expected a Recording"),
        ([step()], TypeError, "cannot draw a Timeline; expected a Recording"),
        (Timeline(), ValueError, "has no spans"),
        ([], ValueError, "has no spans"),
        ({}, ValueError, "the dict of timelines is empty"),
    ],
)
def test_mistakes(x: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        lab.timeline(x)  # type: ignore[arg-type]


def test_rank_colours_are_told_apart() -> None:
    colors = [style.rank_color(rank) for rank in range(8)]
    assert len(set(colors)) == 8 and style.EXPOSED not in colors
    assert style.rank_color(8) == colors[0]
    assert style.tint("#000000", 1.0) == "#ffffff" and style.tint("#ffffff", -1.0) == "#000000"
