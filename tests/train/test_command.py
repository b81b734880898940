"""`python -m minddp.train`: alone, with ranks of its own, and under torchrun."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import torch

from minddp.launcher import launch
from minddp.progress import show_progress
from minddp.train import main
from tests.train.small import SMALL_FLAGS, largest_difference

# The flags of the small run come first: a later flag of the same name wins.
TEN_STEPS = [*SMALL_FLAGS, "--steps", "10", "--log-every", "5", "--eval-every", "5"]
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in LAUNCHER_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def losses_alone(tmp_path_factory) -> list[float]:
    path = tmp_path_factory.mktemp("alone") / "run.pt"
    assert main([*TEN_STEPS, "--progress", "none", "--checkpoint", str(path)]) == 0
    return losses_in(path)


def losses_in(path) -> list[float]:
    return torch.load(path, weights_only=True)["losses"]


def test_one_process_prints_plain_lines(capsys):
    assert main(TEN_STEPS) == 0
    out, err = capsys.readouterr()
    line = r"step {}/10  loss \d\.\d{{4}}  held-out \d\.\d{{4}}  [\d,]+ tokens/s\n"
    assert re.fullmatch(line.format(" 5") + line.format("10"), out)
    assert err == ""


def test_no_progress_is_silent(capsys):
    assert main([*TEN_STEPS, "--progress", "none"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_bar_when_asked_for(capsys):
    assert main([*TEN_STEPS, "--progress", "bar"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "10/10" in err and "held-out" in err and "tokens/s" in err


def test_a_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(TEN_STEPS) == 0
    assert "10/10" in capsys.readouterr().err


def test_world_size_launches_ranks_and_the_root_alone_reports(tmp_path, capsys, losses_alone):
    path = tmp_path / "run.pt"
    assert main([*TEN_STEPS, "--world-size", "2", "--checkpoint", str(path)]) == 0
    out, err = capsys.readouterr()
    assert re.findall(r"(\[rank \d\]) step +(\d+)/10", out) == [
        ("[rank 0]", "5"),
        ("[rank 0]", "10"),
    ]
    assert "[rank 1]" not in out + err
    assert largest_difference(losses_in(path), losses_alone) < 1e-4


def test_resumes_and_says_so(tmp_path, capsys, losses_alone):
    flags = [*TEN_STEPS, "--progress", "none", "--checkpoint", str(tmp_path / "run.pt")]
    assert main([*flags, "--steps", "4"]) == 0
    assert main(flags) == 0
    assert re.search(r"resumed from .*run\.pt after step 4\n", capsys.readouterr().out)
    assert losses_in(tmp_path / "run.pt") == losses_alone
    assert main(flags) == 0
    assert "nothing to do: --steps 10" in capsys.readouterr().out


def test_samples_text(capsys):
    flags = [*TEN_STEPS, "--progress", "none", "--sample", "30"]
    assert main(flags) == 0
    first = capsys.readouterr().out
    assert main([*flags, "--world-size", "2"]) == 0
    assert len(first) == 32  # a line break to start from, 30 characters, print's own line break
    assert capsys.readouterr().out.count("[rank 0]") >= 1


def test_inside_a_launch_it_takes_the_ranks_that_are_there(tmp_path, losses_alone):
    path = tmp_path / "run.pt"
    flags = [*TEN_STEPS, "--progress", "none", "--checkpoint", str(path)]
    assert launch(main, flags, world_size=2, prints="off") == [0, 0]
    assert largest_difference(losses_in(path), losses_alone) < 1e-4


def torchrun(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    env = {k: v for k, v in os.environ.items() if k not in LAUNCHER_VARIABLES}
    # Ranks on one host need no name of it: gloo may otherwise look for one on the network.
    env.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", TORCH_CPP_LOG_LEVEL="ERROR")
    command += ["--nproc-per-node", "2", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)


def test_under_torchrun_it_takes_the_ranks_that_it_is_given(tmp_path, losses_alone):
    path = tmp_path / "run.pt"
    done = torchrun("-m", "minddp.train", *TEN_STEPS, "--checkpoint", str(path))
    assert done.returncode == 0, done.stderr
    assert re.findall(r"step +(\d+)/10", done.stdout) == ["5", "10"]  # one rank reports
    assert largest_difference(losses_in(path), losses_alone) < 1e-4


DIES_ONCE = """
import os, sys
from minddp.train import main
from minddp.trainer import Trainer

train_step = Trainer.train_step

def die_at_step_seven(trainer):
    first_attempt = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first_attempt and trainer.rank == 1 and trainer.step == 7:
        os._exit(7)
    train_step(trainer)

Trainer.train_step = die_at_step_seven
sys.exit(main())
"""


def test_restarted_by_torchrun_it_goes_on_from_the_checkpoint(tmp_path, losses_alone):
    path, script = tmp_path / "run.pt", tmp_path / "dies_once.py"
    script.write_text(DIES_ONCE)
    flags = [*TEN_STEPS, "--save-every", "4", "--checkpoint", str(path)]
    done = torchrun("--max-restarts", "1", str(script), *flags)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"after step (\d+)", done.stdout) == ["4"]
    assert largest_difference(losses_in(path), losses_alone) < 1e-4


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--batch-size", "1", "--world-size", "2"],
            "--batch-size 1 .* 2 ranks .* at least 2 rows",
        ),
        (["--ddp-backend", "legcy"], "unknown ddp_backend 'legcy'.*did you mean 'legacy'"),
        (["--ddp-backend", "Naive"], "unknown ddp_backend 'Naive'.*did you mean 'naive'"),
        (["--ddp-backend", "xyz"], "unknown ddp_backend 'xyz'; choose from .*naive.*c10d"),
        (["--steps", "0"], "--steps must be at least 1, got 0"),
        (["--steps", "1.5"], "--steps: invalid int value: '1.5'"),
        (["--batch-size", "-4"], "--batch-size must be at least 1, got -4"),
        (["--seed", "-1"], "--seed must be at least 0"),
        (["--lr", "0"], "--lr must be a positive finite number, got 0.0"),
        (["--lr", "nan"], "--lr must be a positive finite number, got nan"),
        (["--clip", "-1"], "--clip must be a positive"),
        (["--n-embd", "10", "--n-head", "4"], "--n-embd 10 .* --n-head 4 heads"),
        (["--world-size", "0"], "--world-size must be at least 1, got 0"),
        (["--timeout", "0"], "--timeout must be a positive"),
        (["--sample", "-1"], "--sample must be at least 0"),
    ],
)
def test_a_bad_value_is_refused_before_anything_starts(flags, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([*SMALL_FLAGS, *flags])
    assert stopped.value.code == 2
    assert re.search(message, capsys.readouterr().err)


def test_a_row_longer_than_the_text_is_refused(capsys):
    assert main(["--block-size", "100000"]) == 1
    assert "--block-size 100000 needs 100001 characters" in capsys.readouterr().err


def test_a_file_that_is_no_checkpoint_ends_in_one_line(tmp_path, capsys):
    (tmp_path / "run.pt").write_text("something else")
    flags = [*SMALL_FLAGS, "--checkpoint", str(tmp_path / "run.pt")]
    assert main(flags) == 1
    assert capsys.readouterr().err.count("cannot be read as a checkpoint") == 1
    assert main([*flags, "--world-size", "2"]) == 1
    assert "cannot be read as a checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("environment", "flags", "messages"),
    [
        ({"RANK": "0"}, [], ["WORLD_SIZE is not set", "MASTER_ADDR is not set", "torchrun"]),
        ({"WORLD_SIZE": "2"}, [], ["RANK is not set", "MASTER_PORT is not set"]),
        ({"RANK": "x", "WORLD_SIZE": "2"}, [], ["RANK='x' is not a whole number", "MASTER_ADDR"]),
        (
            {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
            [],
            ["RANK=2 is not below WORLD_SIZE=2"],
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
            ["--world-size", "3"],
            ["--world-size 3 was asked for, but 2 ranks have been started already"],
        ),
    ],
)
def test_a_wrong_environment_is_refused(environment, flags, messages, monkeypatch, capsys):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main([*SMALL_FLAGS, *flags])
    err = capsys.readouterr().err
    for message in messages:
        assert message in err


def test_an_unknown_style_of_progress_is_refused():
    with (
        pytest.raises(ValueError, match="'auto', 'bar', 'lines', 'none'"),
        show_progress(None, "x"),
    ):
        pass
