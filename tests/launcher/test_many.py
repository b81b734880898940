"""Launches at the same time and in a row, and processes that the ranks start."""

import gc
import os
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from minddp._launch import forkserver
from minddp.launcher import LaunchTimeout, RankFailed, launch


def summed(x: float) -> float:
    tensor = torch.tensor(x + dist.get_rank())
    dist.all_reduce(tensor)
    return tensor.item()


def test_threads_that_launch_at_the_same_time():
    def fail_or_sum(k: int) -> list[float] | str:
        def work(x: float) -> float:
            if x == 2:
                raise ValueError(f"number {x}")
            tensor = torch.tensor(x + dist.get_rank())
            dist.all_reduce(tensor)
            return tensor.item()

        try:
            return launch(work, float(k), prints="off")
        except RankFailed as error:
            return error.summary.partition("failed: ")[2]

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(fail_or_sum, range(8)))
    expected: list[list[float] | str] = [[2.0 * k + 1] * 2 for k in range(8)]
    expected[2] = "ValueError: number 2.0"
    assert answers == expected


def test_launch_from_a_thread_that_ends_leaves_a_working_server():
    forkserver.stop()
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(launch(lambda: 1, backend=None)))
    thread.start()
    thread.join()
    server = forkserver._server.process.pid
    assert launch(lambda: 2, backend=None) == [2, 2]
    assert answers == [[1, 1]]
    assert forkserver._server.process.pid == server


def test_a_server_that_was_killed_is_started_again():
    launch(lambda: None, backend=None)
    forkserver._server.process.kill()
    forkserver._server.process.wait()
    assert launch(lambda: 1) == [1, 1]


def alive(pid: int) -> bool:
    """A killed process stays as a zombie until whoever adopted it looks."""
    try:
        process = psutil.Process(pid)
        psutil.wait_procs([process], timeout=5)
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_two_hundred_launches_leak_nothing():
    def figures() -> dict[str, int]:
        gc.collect()
        server = psutil.Process(forkserver._server.process.pid)
        return {
            "descriptors": psutil.Process().num_fds(),
            "threads": threading.active_count(),
            "descriptors of the server": server.num_fds(),
            "children of the server": len(server.children()),
            "children": len(psutil.Process().children()),
            "temporary files": len(list(Path(tempfile.gettempdir()).iterdir())),
        }

    work = lambda: dist.get_rank()  # noqa: E731
    launch(work)
    before = figures()
    for _ in range(200):
        assert launch(work) == [0, 1]
    assert figures() == before


def test_dataloader_workers_of_a_rank_work_and_do_not_outlive_it():
    def work() -> tuple[float, list[int]]:
        data = TensorDataset(torch.arange(8.0))
        loader = DataLoader(data, batch_size=2, num_workers=2, persistent_workers=True)
        total = sum(batch.sum().item() for (batch,) in loader)
        import psutil

        # They live on when the function returns, as persistent workers do.
        return total, [child.pid for child in psutil.Process().children(recursive=True)]

    (total, first), (_, second) = launch(work)
    assert total == 28.0
    assert len(first) == len(second) == 2
    assert not any(alive(pid) for pid in first + second)


@pytest.mark.parametrize("how", ["killed", "late"])
def test_grandchildren_end_with_a_rank_that_ends_badly(how, tmp_path):
    def work(folder: Path) -> None:
        import subprocess

        child = subprocess.Popen(["sleep", "1000"])
        (folder / f"pid{os.environ['RANK']}").write_text(str(child.pid))
        if how == "killed":
            os.kill(os.getpid(), 9)
        time.sleep(1000)

    with pytest.raises(RankFailed if how == "killed" else LaunchTimeout):
        launch(work, tmp_path, timeout=1.5, backend=None)
    pids = [int(path.read_text()) for path in tmp_path.glob("pid*")]
    assert pids
    assert not any(alive(pid) for pid in pids)


def test_a_rank_may_not_see_the_descriptors_of_its_siblings():
    """A copy of a sibling's pipe would keep the launcher waiting for the end of its output."""

    def descriptors() -> int:
        dist.barrier()
        return len(os.listdir("/proc/self/fd"))

    if not os.path.exists("/proc/self/fd"):
        pytest.skip("counts descriptors in /proc")
    few = launch(descriptors, world_size=1)[0]
    many = launch(descriptors, world_size=4)
    assert max(many) - few <= 3 * 4  # gloo's own connections to three peers
