"""The profiles that ship: what the script makes, with the published numbers of parameters."""

import runpy
from pathlib import Path

import pytest

from minddp.step_profile import load_profile

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "make_profiles.py"))


@pytest.mark.parametrize("name", ["resnet50", "bert_base"])
def test_the_files_are_up_to_date(name: str) -> None:
    shipped = (ROOT / "minddp" / "data" / f"{name}.json").read_text()
    assert shipped == SCRIPT["profiles"]()[name].to_json(), "run scripts/make_profiles.py"


def test_resnet50() -> None:
    profile = load_profile("resnet50")
    assert profile.total_bytes == 4 * 25_557_032
    assert len(profile.param_bytes) == 161
    sizes = dict(zip(profile.param_names, profile.param_bytes, strict=True))
    assert sizes["conv1.weight"] == 4 * 64 * 3 * 7 * 7
    assert sizes["layer4.2.conv3.weight"] == 4 * 2048 * 512
    assert sizes["layer1.0.downsample.0.weight"] == 4 * 256 * 64
    assert sizes["fc.bias"] == 4000


def test_work_of_the_published_resnets() -> None:
    for blocks, giga in (((3, 4, 6, 3), 4.09), ((3, 8, 36, 3), 11.51)):
        macs = sum(layer.multiply_adds for layer in SCRIPT["resnet"](blocks))
        assert macs / 1e9 == pytest.approx(giga, abs=0.01)


def test_bert_base() -> None:
    profile = load_profile("bert_base")
    assert profile.total_bytes == 4 * 109_482_240
    sizes = dict(zip(profile.param_names, profile.param_bytes, strict=True))
    assert sizes["embeddings.word.weight"] == 4 * 30522 * 768
    per_layer = sum(size for path, size in sizes.items() if path.startswith("layers.7."))
    assert per_layer == 4 * 7_087_872


@pytest.mark.parametrize("name", ["resnet50", "bert_base"])
def test_gradients_come_from_the_last_layer_to_the_first(name: str) -> None:
    profile = load_profile(name)
    backward_s = profile.backward_seconds
    assert list(profile.ready_s) == sorted(profile.ready_s, reverse=True)
    assert profile.ready_s[0] == pytest.approx(backward_s)
    assert 0 < profile.ready_s[-1] < 0.05 * backward_s
    assert profile.forward_s == pytest.approx(backward_s / 2, rel=1e-4)
    assert "confirmed" in profile.source
