"""The demo's table, picture and numbers, from a demo of a few steps."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from minddp import demo, demo_report
from minddp.ddp import DDP_BACKENDS

SHORT = ["--steps", "4", "--batch-size", "3"]


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """(exit code, folder) of one short demo; its text is in text.txt."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr("builtins.print", lambda *words, **_: lines.append(" ".join(map(str, words))))
        code = demo.main([*SHORT, "--out", str(folder)])
    (folder / "text.txt").write_text("\n".join(lines))
    return code, folder


def table(folder) -> dict[str, dict[str, float]]:
    numbers = json.loads((folder / "demo.json").read_text())
    return {row["name"]: row for row in numbers["rows"]}


def test_trains_under_every_kind_of_ddp(shown):
    code, folder = shown
    assert code == 0
    kinds = [name for name in demo.LADDER if name in DDP_BACKENDS]
    assert list(table(folder)) == ["one process", *kinds]
    assert {"naive", "c10d"} <= set(kinds)


def test_losses_are_those_of_one_process(shown):
    rows = table(shown[1])
    for name, row in rows.items():
        assert row["difference"] < 1e-4, name
        assert row["held_out_loss"] == pytest.approx(rows["one process"]["held_out_loss"], abs=1e-4)
        assert row["ms_per_step"] > 0


def test_counts_are_those_of_one_step(shown):
    rows = table(shown[1])
    assert rows["one process"]["all_reduces"] == 0
    assert rows["naive"]["all_reduces"] == 36  # one for each parameter tensor
    assert 1 < rows["c10d"]["all_reduces"] < 36  # buckets
    for name, row in rows.items():
        if name != "one process":
            assert row["mib"] == pytest.approx(810_112 * 4 / 2**20, rel=0.05), name


def test_the_ladder_climbs_from_many_messages_to_few(shown):
    rows = table(shown[1])
    expected = {"flat": lambda n: n == 1, "legacy": lambda n: 1 < n < 36}
    expected["overlapped"] = expected["legacy"]
    for name in expected.keys() & rows.keys():
        assert expected[name](rows[name]["all_reduces"]), name


def test_saves_and_names_the_picture_and_the_numbers(shown):
    folder = shown[1]
    assert (folder / "demo.png").read_bytes().startswith(b"\x89PNG")
    text = (folder / "text.txt").read_text()
    assert str(folder / "demo.png") in text and str(folder / "demo.json") in text
    for name in table(folder):
        assert f"\n{name}" in text


def test_fails_when_a_kind_of_ddp_does_not_train_as_one_process_does(tmp_path, monkeypatch, capsys):
    config, world_size, _ = demo.parse([*SHORT, "--steps", "2"])
    monkeypatch.setattr(demo, "LADDER", ("naive",))
    runs = demo.run_all(config, world_size)
    root = runs["naive"][0]
    runs["naive"][0] = replace(root, losses=[root.losses[0], root.losses[1] + 0.01])
    monkeypatch.setattr(demo, "run_all", lambda *_: runs)
    monkeypatch.setattr(demo, "draw", lambda *_: None)
    assert demo.main([*SHORT, "--out", str(tmp_path)]) == 1
    assert "not the losses of one process: naive" in capsys.readouterr().err
    assert demo_report.rows(runs)[1].difference == pytest.approx(0.01, abs=1e-3)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--world-size", "1"], "--world-size must be at least 2"),
        (["--batch-size", "2", "--world-size", "3"], "each needs a row"),
        (["--steps", "0"], "--steps must be at least 1"),
        (["--steps", "1"], "--steps must be at least 2"),
    ],
)
def test_a_bad_value_is_refused(flags, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        demo.main(flags)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
