"""Bad input raises ValueError that names the field."""

import math
from pathlib import Path

import pytest

from minddp.closed_forms import best_bucket_bytes, exposed_seconds
from minddp.cost_model import CallCost, Link
from minddp.simulator import simulate
from minddp.step_profile import StepProfile, load_profile

WIRE = Link(1e-3, 1e9)
GOOD = {"param_bytes": [4.0, 8.0], "ready_s": [0.2, 0.1]}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("param_bytes", [4.0, -8.0]),
        ("param_bytes", [4.0, math.nan]),
        ("param_bytes", []),
        ("ready_s", [0.2]),
        ("ready_s", [0.2, -0.1]),
        ("ready_s", [0.2, math.nan]),
        ("backward_s", 0.15),
        ("backward_s", -1.0),
        ("forward_s", -1.0),
        ("forward_s", math.inf),
        ("optimizer_s", math.nan),
        ("param_names", ["only one"]),
    ],
)
def test_profile(field: str, value: object) -> None:
    named = "ready_s" if value == 0.15 else field  # a gradient after the end of backward
    with pytest.raises(ValueError, match=rf"^{named}(\[\d\])? must be .* got "):
        StepProfile(**(GOOD | {field: value}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("world_size", 0),
        ("strategy", "fast"),
        ("bucket_cap_mb", -1.0),
        ("bucket_cap_mb", math.nan),
        ("algorithm", "butterfly"),
        ("sync_every", 0),
        ("sync_every", 1.5),
        ("compression", 0.5),
        ("compression", math.nan),
        ("first_bucket_mb", -1.0),
        ("ranks_shown", 0),
    ],
)
def test_simulate(field: str, value: object) -> None:
    arguments = {"world_size": 2} | {field: value}
    with pytest.raises(ValueError, match=f"^{field} must be .* got "):
        simulate(StepProfile(**GOOD), WIRE, **arguments)


def test_closed_forms() -> None:
    cost = CallCost(1.0, 1.0)
    with pytest.raises(ValueError, match="^total_bytes"):
        exposed_seconds(-1.0, 1.0, 1, cost)
    with pytest.raises(ValueError, match="^backward_s"):
        exposed_seconds(1.0, -1.0, 1, cost)
    with pytest.raises(ValueError, match="^buckets"):
        exposed_seconds(1.0, 1.0, 0, cost)
    with pytest.raises(ValueError, match="^total_bytes"):
        best_bucket_bytes(0.0, cost)
    with pytest.raises(ValueError, match="^backward_s"):
        best_bucket_bytes(1.0, cost, -1.0)


def test_even_and_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="^count"):
        StepProfile.even(1.0, 1.0, 0)
    with pytest.raises(ValueError, match=r"^name must be one of .*got 'resnet5000'"):
        load_profile("resnet5000")
    profile = StepProfile(**GOOD, forward_s=0.5, name="two layers", param_names=("a", "b"))
    (tmp_path / "two.json").write_text(profile.to_json())
    assert load_profile(tmp_path / "two.json") == profile
