"""Sliders over the simulator's pictures, for a notebook.

Each explorer is a box of controls and one image. A change of any control draws the picture anew
with the pure function behind it; nothing is printed, so a stored notebook compares well.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import ipywidgets

from minddp.cost_model import HierarchicalLink, Link
from minddp.lab.ring_plot import ring_picture
from minddp.lab.simulator_plots import CAPS_MB, WORLD_SIZES, bucket_picture, scaling_picture
from minddp.lab.style import Picture, style
from minddp.simulator import STRATEGIES
from minddp.step_profile import StepProfile

LATENCIES_S = (1e-6, 5e-6, 2e-5, 5e-5, 1e-4, 5e-4, 2e-3)
BANDWIDTHS_BPS = (1e7, 1.25e8, 1e9, 2.2e9, 1.25e10, 1e11)


class Explorer(ipywidgets.VBox):  # type: ignore[misc]  # ipywidgets has no types
    """Controls by name, and the image that `draw(**values)` gives for their values."""

    def __init__(self, draw: Callable[..., Picture], **controls: Any) -> None:
        self.draw = draw
        self.controls = controls
        self.image = ipywidgets.Image(format="png", width=900)
        rows = [*controls.values(), self.image]
        super().__init__(rows)
        for control in controls.values():
            control.observe(self._redraw, names="value")
        self._redraw(None)

    def _redraw(self, _: Any) -> None:
        values = {name: control.value for name, control in self.controls.items()}
        picture = self.draw(**values)
        self.image.alt = repr(picture)
        self.image.value = _png(picture)


def _png(picture: Picture) -> bytes:
    """At screen resolution: a slider should not wait for print quality."""
    buffer = io.BytesIO()
    with style():
        picture.savefig(buffer, format="png", dpi=picture.dpi)
    return buffer.getvalue()


def bucket_explorer(profile: StepProfile, world_size: int = 16) -> Explorer:
    """Bucket size, latency, bandwidth, ranks and strategy; the timeline and the U-curve."""

    def draw(
        bucket_cap_mb: float, latency_s: float, bandwidth_Bps: float, ranks: int, strategy: str
    ) -> Picture:
        link = Link(latency_s, bandwidth_Bps)
        return bucket_picture(profile, link, ranks, strategy, bucket_cap_mb, legend=False)

    return Explorer(
        draw,
        bucket_cap_mb=_slider("bucket (MiB)", CAPS_MB, 25.0),
        latency_s=_slider("latency", LATENCIES_S, 5e-5, "{:g} s"),
        bandwidth_Bps=_slider("bandwidth", BANDWIDTHS_BPS, 2.2e9, "{:g} B/s"),
        ranks=_slider("ranks", WORLD_SIZES, world_size),
        strategy=_slider("strategy", STRATEGIES, "overlapped", "{}"),
    )


def scaling_explorer(profile: StepProfile, link: Link | HierarchicalLink) -> Explorer:
    """Efficiency of the four strategies up to 4096 ranks, by bucket size and algorithm."""
    algorithms = ["ring", "tree", "star"]
    if isinstance(link, HierarchicalLink):
        algorithms.append("hierarchical")

    def draw(bucket_cap_mb: float, algorithm: str) -> Picture:
        return scaling_picture(profile, link, bucket_cap_mb, algorithm)

    return Explorer(
        draw,
        bucket_cap_mb=_slider("bucket (MiB)", CAPS_MB, 25.0),
        algorithm=_slider("algorithm", algorithms, "ring", "{}"),
    )


def ring_stepper(world_size: int = 4) -> Explorer:
    """Step through a ring all-reduce."""
    last = 2 * (world_size - 1)

    def draw(steps_done: int) -> Picture:
        return ring_picture(world_size, steps_done)

    return Explorer(draw, steps_done=_slider("step", range(last + 1), 0))


def _slider(name: str, choices: Any, value: Any, form: str = "{:g}") -> ipywidgets.SelectionSlider:
    options = [(form.format(choice), choice) for choice in choices]
    wide = {"description_width": "90px"}
    return ipywidgets.SelectionSlider(options=options, value=value, description=name, style=wide)
