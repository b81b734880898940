"""The explorers and the ring stepper: the pure functions, and that controls reach the picture."""

import time

import pytest
import torch
import torch.distributed as dist

from minddp.cost_model import HierarchicalLink, Link
from minddp.lab.ring_plot import ring_messages, ring_picture, ring_state
from minddp.lab.simulator_plots import bucket_curve, bucket_picture, scaling_curves, scaling_picture
from minddp.lab.simulator_widgets import bucket_explorer, ring_stepper, scaling_explorer
from minddp.lab.style import Picture
from minddp.launcher import launch
from minddp.paper_figures import NCCL_LIKE
from minddp.point_to_point import Peers
from minddp.ring import ring_all_reduce
from minddp.simulator import simulate
from minddp.step_profile import load_profile

RESNET = load_profile("resnet50")
WIRE = Link(5e-5, 2.2e9)


def test_bucket_picture_marks_the_best_and_the_chosen() -> None:
    picture = bucket_picture(RESNET, WIRE, 16, bucket_cap_mb=7.0)
    rows, below = picture.axes
    curve = bucket_curve(RESNET, WIRE, 16)
    marks = {line.get_gid(): line.get_ydata()[0] for line in below.lines}
    assert marks["best"] == pytest.approx(1e3 * min(curve.values()))
    chosen = simulate(RESNET, WIRE, 16, bucket_cap_mb=7.0)
    assert marks["chosen"] == pytest.approx(1e3 * chosen.duration)
    assert "simulated" in repr(picture) and "7 MiB" in repr(picture)
    bars = [patch for patch in rows.patches if patch.get_gid() == "rank 0 comm"]
    assert len(bars) == len(chosen.of(0, "comm"))


def test_scaling_picture_draws_every_strategy_to_4096_ranks() -> None:
    curves = scaling_curves(RESNET, NCCL_LIKE, algorithm="hierarchical")
    for efficiency in curves.values():
        assert efficiency[0] == pytest.approx(1.0)
        assert efficiency == sorted(efficiency, reverse=True)
    (axes,) = scaling_picture(RESNET, NCCL_LIKE, algorithm="hierarchical").axes
    drawn = {line.get_gid(): list(line.get_ydata()) for line in axes.lines}
    assert drawn == curves
    assert axes.lines[0].get_xdata()[-1] == 4096


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_ring_state_ends_with_everything_everywhere(n: int) -> None:
    assert ring_state(n, 0) == [[{rank}] * n for rank in range(n)]
    assert ring_state(n, 2 * (n - 1)) == [[set(range(n))] * n] * n
    for rank, chunks in enumerate(ring_state(n, n - 1)):
        assert chunks[rank] == set(range(n)), "after the reduce-scatter chunk r is complete on r"


def parts_sent() -> list[set[int]]:
    """What a real ring sends: rank r starts with 2**r everywhere, so a sum names its parts."""
    sent = []

    class Watched(Peers):
        def exchange(self, outgoing, to, incoming, source):
            sent.append({r for r in range(self.size) if int(outgoing[0]) >> r & 1})
            super().exchange(outgoing, to, incoming, source)

    size = dist.get_world_size()
    ring_all_reduce.__globals__["Peers"] = Watched
    try:
        ring_all_reduce(torch.full((size,), 2 ** dist.get_rank()))
    finally:
        ring_all_reduce.__globals__["Peers"] = Peers
    return sent


def test_the_stepper_shows_what_the_real_ring_sends() -> None:
    n = 4
    by_rank = launch(parts_sent, world_size=n)
    for step in range(2 * (n - 1)):
        messages = ring_messages(n, step)
        assert [message.parts for message in messages] == [sent[step] for sent in by_rank]
        assert [message.target for message in messages] == [1, 2, 3, 0]


def test_ring_picture_frames_what_came() -> None:
    (axes,) = ring_picture(3, 2).axes
    assert len([p for p in axes.patches if p.get_gid() == "came"]) == 3
    strips = [p for p in axes.patches if (p.get_gid() or "").startswith("rank")]
    assert len(strips) == sum(len(parts) for row in ring_state(3, 2) for parts in row)
    assert "reduce-scatter" in axes.get_title(loc="left")
    with pytest.raises(ValueError, match=r"step must be in 0\.\.4 for 3 ranks, got 5"):
        ring_picture(3, 5)


def test_a_control_changes_the_picture() -> None:
    explorers = {
        "bucket_cap_mb": (bucket_explorer(RESNET), 0.25),
        "algorithm": (scaling_explorer(RESNET, NCCL_LIKE), "hierarchical"),
        "steps_done": (ring_stepper(3), 4),
    }
    for control, (explorer, value) in explorers.items():
        before, name = explorer.image.value, explorer.image.alt
        explorer.controls[control].value = value
        assert explorer.image.value != before
        assert explorer.image.alt != name
        assert bytes(explorer.image.value[:4]) == b"\x89PNG"
    assert "hierarchical" not in [label for label, _ in _algorithms(WIRE)]


def _algorithms(link: Link | HierarchicalLink) -> list[tuple[str, str]]:
    return list(scaling_explorer(RESNET, link).controls["algorithm"].options)


def test_a_redraw_takes_less_time_than_ten_plain_figures() -> None:
    def plain() -> None:
        picture = Picture("plain", height=4.2)
        picture.add_axes((0.1, 0.1, 0.8, 0.8)).plot([0, 1], [0, 1])
        picture._repr_png_()

    def seconds(call) -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    explorer = bucket_explorer(RESNET)
    redraw = min(seconds(lambda: explorer._redraw(None)) for _ in range(3))
    assert redraw < 10 * min(seconds(plain) for _ in range(3))
