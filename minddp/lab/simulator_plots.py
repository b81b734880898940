"""Pictures of simulated steps: the bucket explorer's and the scaling explorer's, one per setting.

Pure functions of their arguments: a slider has nothing to do but call them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from minddp.cost_model import HierarchicalLink, Link
from minddp.lab import style
from minddp.lab.timeline_plot import timeline
from minddp.simulator import STRATEGIES, simulate
from minddp.step_profile import StepProfile

CAPS_MB = (0.0, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 25.0, 50.0, 100.0, 200.0)
WORLD_SIZES = tuple(2**k for k in range(13))  # 1 to 4096
STRATEGY_LINES = {"naive": ":", "flat": "-.", "legacy": "--", "overlapped": "-"}


def bucket_curve(
    profile: StepProfile,
    link: Link | HierarchicalLink,
    world_size: int,
    strategy: str = "overlapped",
    caps_mb: Sequence[float] = CAPS_MB,
) -> dict[float, float]:
    """Seconds of a step for each bucket size in MiB."""
    return {
        cap: simulate(profile, link, world_size, strategy, bucket_cap_mb=cap).duration
        for cap in caps_mb
    }


def bucket_picture(
    profile: StepProfile,
    link: Link | HierarchicalLink,
    world_size: int,
    strategy: str = "overlapped",
    bucket_cap_mb: float = 25.0,
    legend: bool = True,
) -> style.Picture:
    """The simulated timeline for one bucket size, over the curve of all, with the best marked."""
    shown = simulate(profile, link, world_size, strategy, bucket_cap_mb=bucket_cap_mb)
    curve = bucket_curve(
        profile, link, world_size, strategy, sorted({*CAPS_MB, float(bucket_cap_mb)})
    )
    with style.style():
        picture = style.Picture(f"{shown.title}, buckets of {bucket_cap_mb:g} MiB", height=4.2)
        rows = picture.add_axes((0.14, 0.60, 0.84, 0.27))
        timeline(shown, ax=rows, legend=legend)
        below = picture.add_axes((0.14, 0.11, 0.84, 0.33))
        _draw_curve(below, curve, bucket_cap_mb)
    return picture


def _draw_curve(ax: Axes, curve: Mapping[float, float], chosen: float) -> None:
    caps = list(curve)
    best = min(caps, key=lambda cap: curve[cap])
    places = {cap: place for place, cap in enumerate(caps)}  # even steps, with room for 0
    ax.plot(list(places.values()), [1e3 * s for s in curve.values()], color=style.FAINT)
    ax.plot(places[best], 1e3 * curve[best], "*", color=style.INK, markersize=11, gid="best")
    ax.plot(places[chosen], 1e3 * curve[chosen], "o", color=style.rank_color(0), gid="chosen")
    ax.annotate(
        f"best of these: {best:g} MiB, {1e3 * curve[best]:.3g} ms",
        (0.5, 0.9),
        xycoords="axes fraction",
        ha="center",
    )
    ax.set_xticks(list(places.values()), [f"{cap:g}" for cap in caps])
    ax.set_ylim(0, 1.25e3 * max(curve.values()))
    ax.set_xlabel("bucket size (MiB; 0 is a bucket per parameter)")
    ax.set_ylabel("step (ms)")


def scaling_curves(
    profile: StepProfile,
    link: Link | HierarchicalLink,
    bucket_cap_mb: float = 25.0,
    algorithm: str = "ring",
    world_sizes: Sequence[int] = WORLD_SIZES,
) -> dict[str, list[float]]:
    """Efficiency (1 is perfect) of each strategy on each number of ranks: compute over step."""
    return {
        strategy: [
            profile.compute_s
            / simulate(profile, link, n, strategy, bucket_cap_mb, algorithm).duration
            for n in world_sizes
        ]
        for strategy in STRATEGIES
    }


def scaling_picture(
    profile: StepProfile,
    link: Link | HierarchicalLink,
    bucket_cap_mb: float = 25.0,
    algorithm: str = "ring",
    world_sizes: Sequence[int] = WORLD_SIZES,
) -> style.Picture:
    """How much of each rank's time is training, up to thousands of ranks."""
    curves = scaling_curves(profile, link, bucket_cap_mb, algorithm, world_sizes)
    with style.style():
        picture = style.Picture(f"scaling of {profile.name}, {algorithm}", height=3.2)
        ax = picture.add_axes((0.10, 0.17, 0.74, 0.72))
        for strategy, efficiency in curves.items():
            line = STRATEGY_LINES[strategy]
            ax.plot(world_sizes, efficiency, line, color=style.INK, label=strategy, gid=strategy)
        ax.set_xscale("log", base=2)
        ax.set_xticks(list(world_sizes), [str(n) for n in world_sizes])
        ax.set_ylim(0, 1.05)
        ax.grid(axis="y", color=style.GRID)
        ax.set_xlabel("ranks (simulated)")
        ax.set_ylabel("share of the step that trains")
        ax.set_title(f"{profile.name}, {algorithm}, buckets of {bucket_cap_mb:g} MiB", loc="left")
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return picture
