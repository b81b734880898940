"""The second start method, which is the one of Windows: forced here, to run its code."""

import os
import time

import psutil
import pytest
import torch
import torch.distributed as dist

from minddp.launcher import LaunchTimeout, RankFailed, launch


def test_values_prints_and_environment(capsys, monkeypatch):
    monkeypatch.setenv("SEASON", "autumn")

    def work(scale: float) -> tuple[torch.Tensor, str | None, int]:
        x = torch.ones(2) * (dist.get_rank() + 1) * scale
        dist.all_reduce(x)
        print("sum", x.tolist())
        with pytest.raises(EOFError):  # the pipe of the launcher's orders is not for input()
            input()
        return x, os.environ.get("SEASON"), torch.get_num_threads()

    results = launch(work, 10.0, start_method="spawn", threads_per_rank=1)
    assert [x.tolist() for x, _, _ in results] == [[30.0, 30.0]] * 2
    assert results[1][1:] == ("autumn", 1)
    assert capsys.readouterr().out == "[rank 0] sum [30.0, 30.0]\n[rank 1] sum [30.0, 30.0]\n"


def test_a_rank_that_raises_and_a_grandchild(tmp_path):
    def work() -> None:
        import subprocess

        child = subprocess.Popen(["sleep", "1000"])
        (tmp_path / f"pid{dist.get_rank()}").write_text(str(child.pid))
        dist.barrier()
        if dist.get_rank() == 1:
            raise ValueError("boom")
        dist.all_reduce(torch.ones(3))

    with pytest.raises(RankFailed) as caught:
        launch(work, start_method="spawn")
    assert caught.value.summary == "rank 1 failed: ValueError: boom"
    assert "it waits in all_reduce #1 (3 float32)" in caught.value.others[0]
    for path in tmp_path.glob("pid*"):
        if psutil.pid_exists(int(path.read_text())):
            process = psutil.Process(int(path.read_text()))
            psutil.wait_procs([process], timeout=5)
            assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_rank_that_is_killed_and_one_that_is_late():
    def killed() -> None:
        if dist.get_rank() == 0:
            os.kill(os.getpid(), 9)
        dist.barrier()

    with pytest.raises(RankFailed) as failed:
        launch(killed, start_method="spawn")
    assert (failed.value.rank, failed.value.signal) == (0, 9)
    with pytest.raises(LaunchTimeout) as late:
        launch(lambda: time.sleep(1000), start_method="spawn", timeout=1.0, world_size=1)
    assert "time.sleep(1000)" in late.value.stacks[0]
